"""A script as a rank's ``__main__`` sees what it sees as a process, and ends as one."""

import os
import re
import subprocess
import sys
import zipfile

import pytest

from labkit import turns
from labkit_ranks.rank.system_calls import RankExit
from labkit_ranks.threads.world import RanksFailed, World
from labkit_ranks.torchrun.script import RankProgram, exit_code

REPORT = """
import __main__, atexit, inspect, os, pickle, sys, threading
class Kept: pass
note: int = 1
for name in sorted(vars(__main__)):
    if name.startswith("__") and name != "__builtins__":
        print(f"{name} {getattr(__main__, name)}")
print(f"{sys.argv} {sys.path[0]} {__builtins__} {os.environ['RANK']}")
print(f"{pickle.dumps(Kept())} {type(pickle.loads(pickle.dumps(Kept()))) is Kept}")
print(threading.current_thread() is threading.main_thread())
try:
    print(inspect.getsource(Kept))
except OSError as error:
    print(error)
atexit.register(print, "registered first")
atexit.register(print, "registered last")
done = threading.Event()
threading.Thread(target=lambda: (done.wait(), print("a thread goes on"))).start()
done.set()
"""


@pytest.fixture
def world():
    with World(2) as world:
        yield world


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.py").write_text(REPORT)
    for name in ("folder", "package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__main__.py").write_text(REPORT)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "part.py").write_text(REPORT)
    with zipfile.ZipFile(tmp_path / "zipped.pyz", "w") as zipped:
        zipped.writestr("__main__.py", REPORT)
    return tmp_path


def run(world, text, folder, *arguments):
    (folder / "script.py").write_text(text)
    return world.run(RankProgram("script.py", arguments))


def stripped(text):
    """The lines, without addresses, sorted: ranks print by turns.

    While a rank waits for its thread another goes on, so that what is printed then may stand in another's line.
    ``print`` writes each argument by itself: the report gives it one, so that only an end of line is cut off.
    """
    text = re.sub("a thread goes on|registered last|registered first", r"\n\g<0>\n", text)
    return sorted(line.split(" at 0x")[0] for line in text.splitlines() if line)


@pytest.mark.parametrize("arguments", [
    ["report.py", "-x", "--gpus"], ["./folder/../report.py"], ["folder", "a"], ["zipped.pyz"],
    ["-m", "report", "-c"], ["-m", "package"], ["-m", "package.part", "a"],
], ids=" ".join)  # fmt: skip
def test_it_sees_what_it_sees_under_python(world, folder, arguments, capfd):
    module = arguments[0] == "-m"
    world.run(RankProgram(arguments[module], arguments[module + 1 :], module))
    found = capfd.readouterr().out
    expected = [
        subprocess.run(
            [sys.executable, "-u", *arguments],
            capture_output=True, text=True, env={**os.environ, "RANK": str(rank)}, check=True,
        ).stdout
        for rank in range(2)
    ]  # fmt: skip
    assert stripped(found) == stripped("".join(expected))
    assert found.index("registered last") < found.index("registered first")
    assert found.rindex("a thread goes on") < found.rindex("registered last")


ENDS = [
    ("import sys; sys.exit(7)", 7), ("import sys; sys.exit('bad luck')", 1), ("raise KeyboardInterrupt", -2),
    ("import os; os.kill(os.getpid(), 2)", -2),
    ("import os; os.kill(os.getpid(), 15)", -15), ("import os; os._exit(3)", 3), ("import not_there", 1),
    ("def f(): 1/0\ntry: f()\nexcept Exception as error: raise ValueError('so') from error", 1),
    ("import sys\nsys.excepthook = lambda *error: print('mine:', error[1])\n1/0", 1), ("if True print(1)", 1),
    ("import atexit, sys\natexit.register(print, 'end')\natexit.unregister(print)\nsys.exit(4)", 4),
    ("import atexit\natexit.register(print, 'end')\nraise ExceptionGroup('two', [ValueError(1), TypeError(2)])", 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code"), ENDS)
def test_it_ends_as_it_does_under_python(world, folder, text, code, capfd, monkeypatch):
    monkeypatch.setattr(
        sys, "excepthook", sys.__excepthook__
    )  # PyTorch's, of a group that a test made outside
    with pytest.raises(RanksFailed) as failed:
        run(world, text, folder)
    out, err = capfd.readouterr()
    alone = subprocess.run([sys.executable, "-u", "script.py"], capture_output=True, text=True)
    assert (failed.value.rank, exit_code(failed.value.error)) == (0, code)
    # Both ranks end so; what they fail by is shown once.
    assert (out, err) == (alone.stdout * (1 + ("atexit" in text)), alone.stderr)
    assert alone.returncode == code


@pytest.mark.parametrize("text", [
    "import sys; sys.exit()",
    "import sys; sys.exit(0)",
    "import atexit\natexit.register(lambda: 1/0)",
    "import os, subprocess\none = subprocess.Popen(['sleep', '9'])\nos.kill(one.pid, 9)\nassert one.wait() == -9",
])  # fmt: skip
def test_it_ends_well(world, folder, text, capfd):
    run(world, text, folder)
    assert capfd.readouterr().err.count("ZeroDivisionError") == 2 * ("1/0" in text)


def test_who_is_ended_says_nothing(world, folder, capfd):
    text = (
        "import atexit, os, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "atexit.register(print, 'end of', os.environ['RANK'])\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('mine')\n"
        "dist.barrier()\n"
    )
    with pytest.raises(RanksFailed) as failed:
        run(world, text, folder)
    assert list(failed.value.errors) == [1]
    out, err = capfd.readouterr()
    assert out == "end of 1\n"
    assert {line[:8] for line in err.splitlines() if line} == {"[rank1]:"}
    assert "labkit" not in err
    assert "ValueError: mine" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), (SystemExit(), 0), (SystemExit(2), 2), (SystemExit(256 + 3), 3), (SystemExit("text"), 1),
     (RankExit(-9), -9), (KeyboardInterrupt(), -2), (turns.Deadlock(), 1)],
)  # fmt: skip
def test_exit_codes(error, code):
    assert exit_code(error) == code


ASKS = """
import os

RANK = int(os.environ.get("RANK", -1))
"""
ASKED = """
import plain_to_all, asks_for_its_rank, asks_for_its_rank.late
from asks_for_its_rank import late
from asks_for_its_rank.early import seen
print(asks_for_its_rank.RANK, late.LOCAL_RANK, asks_for_its_rank.late is late, plain_to_all.first)
"""


def test_an_installed_package_that_asks_for_its_rank_is_each_ranks_own(world, folder, capsys):
    """What it keeps would be the first rank's in every other, and nobody would be told."""
    packages = folder / "lib" / "site-packages"
    package = packages / "asks_for_its_rank"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import early\n" + ASKS)
    (package / "early.py").write_text("seen = []\n")
    (package / "late.py").write_text("import os\nLOCAL_RANK = os.environ['LOCAL_RANK']\n")
    # As late as can be: by then the package is there, and everybody's.
    (packages / "asks_for_it_late").mkdir()
    (packages / "asks_for_it_late" / "__init__.py").touch()
    (packages / "asks_for_it_late" / "late.py").write_text((package / "late.py").read_text())
    (packages / "plain_to_all.py").write_text(
        "import os\ndef rank(): return os.environ['RANK']\nfirst = 'one'\n"
    )
    path = f"import sys\nsys.path.insert(0, {str(packages)!r})\n"
    run(world, path + ASKED, folder)
    assert sorted(capsys.readouterr().out.splitlines()) == ["0 0 True one", "1 1 True one"]
    run(
        world,
        path + "import asks_for_it_late, plain_to_all as p, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nseen = [None] * 2\ndist.all_gather_object(seen, id(p))\n"
        "import asks_for_its_rank as a\nb = [None] * 2\ndist.all_gather_object(b, id(a))\n"
        "from asks_for_it_late import late\n"
        "print(len(set(seen)), len(set(b)), p.rank(), late.LOCAL_RANK)",
        folder,
    )
    assert sorted(capsys.readouterr().out.splitlines()) == ["1 2 0 0", "1 2 1 1"]
    for name in [name for name in sys.modules if name.startswith(("asks_for", "plain_to_all"))]:
        del sys.modules[name]
