"""Scripts launched in real processes: what comes back, and that nothing is left, however it ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import labkit
from labkit.course import RankError, glossary, launch
from labkit.course.processes import launcher as launcher_module

# Most of what is tested has nothing to do with torch, whose import would be the greater part of the time.
GROUP = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
"""
PLAIN = "import os\nimport sys\nimport time\n\nrank = int(os.environ['RANK'])\n"
# torchrun itself takes seconds to start: it is asked once for each thing that it does in its own way.
BOTH = pytest.mark.parametrize("torchrun", [True, False])
# What the launcher does, whoever starts the ranks: once is enough, most of the time.
EITHER = pytest.mark.parametrize("torchrun", [pytest.param(True, marks=pytest.mark.more), False])
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc-like process groups")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Temporary folders are made here; after each test none is left, and no rank is alive."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
    for file in tmp_path.glob("*.pid"):
        assert not alive(int(file.read_text())), f"{file.name} is still running"


def alive(pid):
    """Whether the process exists; one that has just been told to end gets a while."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        if is_zombie(pid):
            return False
        time.sleep(0.02)
    return True


def is_zombie(pid):
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.fixture
def script(tmp_path):
    """Writes a script whose ranks first say, in files, which processes they are."""

    def write(body, start=PLAIN):
        # Named when it is written: a rank may be ended in between.
        pids = (
            "\nimport os\nopen(f'{rank}.new', 'w').write(str(os.getpid()))\n"
            "os.replace(f'{rank}.new', f'{rank}.pid')\n"
        )
        path = tmp_path / "script.py"
        path.write_text(start + pids + body)
        return path

    return write


@BOTH
def test_ranks_reach_each_other_and_know_who_they_are(script, torchrun, monkeypatch):
    """Whatever the notebook's own environment says: it may be a rank itself."""
    for name in ("OMP_NUM_THREADS", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "7")
    path = script(
        "x = torch.full((2,), rank + 1.0)\ndist.all_reduce(x)\nprint(x.tolist(), dist.get_world_size())\n"
        "print(os.environ['LOCAL_RANK'], os.environ['MASTER_ADDR'], os.environ['OMP_NUM_THREADS'], sys.argv)\n"
        "dist.destroy_process_group()\n",
        GROUP,
    )
    run = launch(path, 2, "--lr", 0.1, torchrun=torchrun)
    for rank in (0, 1):
        assert run.outputs[rank] == f"[3.0, 3.0] 2\n{rank} 127.0.0.1 1 ['script.py', '--lr', '0.1']\n"
    assert repr(run).splitlines()[0] == "rank 0: [3.0, 3.0] 2"
    assert run.seconds > 0


def test_a_script_is_run_as_python_would(script, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is written last waits in a buffer
    (tmp_path / "neighbour.py").write_text("word = '梯度'\n")
    path = script(
        "import neighbour\nprint(__name__, neighbour.word, os.getcwd(), sys.path[0])\n"
        "import pickle\nclass Mine: pass\nprint(type(pickle.loads(pickle.dumps(Mine()))) is Mine)\n"
        "print('end', end='')\n"
    )
    here = os.path.realpath(tmp_path)
    assert launch(path, 1, torchrun=False).outputs == (f"__main__ 梯度 {here} {here}\nTrue\nend",)


def test_the_notebooks_own_machine_and_folder_stay(script, tmp_path):
    before = os.getcwd()
    with labkit.simulate(gpus=3):
        launch(script(""), 2, torchrun=False)
        import torch

        assert torch.cuda.device_count() == 3
    assert os.getcwd() == before


@EITHER
def test_the_rank_that_failed_first_is_named_with_its_own_traceback(script, torchrun):
    others = (
        "time.sleep(1000)" if torchrun else "dist.all_reduce(torch.ones(1))"
    )  # that one fails too, a little later
    path = script(f"if rank == 1:\n    raise ValueError('no rows')\n{others}\n", PLAIN if torchrun else GROUP)
    with pytest.raises(RankError) as caught:
        launch(path, 2, torchrun=torchrun)
    line = path.read_text().splitlines().index("    raise ValueError('no rows')") + 1
    assert str(caught.value) == (
        "rank 1 of 2 failed with ValueError: no rows (the other ranks were ended).\n\n"
        f'Traceback (most recent call last):\n  File "script.py", line {line}, in <module>\n'
        "    raise ValueError('no rows')\nValueError: no rows"
    )
    assert caught.value.rank == 1


@pytest.fixture
def time_is_up(tmp_path, monkeypatch):
    """Time runs out as soon as every one of the named files is there, however long the ranks took to get there."""

    def when(*names):
        def clock():
            there = all((tmp_path / name).exists() for name in names)
            return time.monotonic() + 1000 * there

        monkeypatch.setattr(launcher_module, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))

    return when


@EITHER
def test_a_hang_ends_when_time_is_up_and_says_where_each_rank_was(script, torchrun, time_is_up):
    path = script(
        "if rank == 0:\n    open('0.waits', 'w').close(), time.sleep(1000)\n"
        "import atexit\natexit.register(lambda: open('1.ended', 'w').close())\n"
    )
    time_is_up("0.waits", "1.ended")
    with pytest.raises(
        RankError, match=r"script.py had not ended after 100 s; all ranks were ended"
    ) as caught:
        launch(path, 2, torchrun=torchrun)
    assert re.search(r"rank 0: line \d+: open.*time.sleep\(1000\)\n  rank 1: had ended", str(caught.value))
    assert caught.value.rank is None


@posix
@EITHER
def test_a_rank_that_will_not_end_is_made_to(script, torchrun, monkeypatch, time_is_up):
    """It ignores SIGTERM and the end of its input, and it has a process of its own."""
    monkeypatch.setattr(launcher_module, "_GRACE", 0.5)
    path = script(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.posix_spawnp('sleep', ['sleep', '1000'], os.environ)\n"
        "open(f'child{rank}.pid', 'w').write(str(child))\nos._exit = lambda code: None\n"
        "open(f'{rank}.stubborn', 'w').close()\nwhile True:\n    time.sleep(1)\n"
    )
    time_is_up("0.stubborn", "1.stubborn")
    with pytest.raises(RankError, match="had not ended after"):
        launch(path, 2, torchrun=torchrun)


@posix
@pytest.mark.timeout(120)  # whoever waits for the other rank waits for ever
@pytest.mark.parametrize(
    ("how", "torchrun"),
    [("os._exit(3)", False), ("os.kill(os.getpid(), 9)", False), ("os.kill(os.getpid(), 9)", True)],
)
def test_a_rank_that_vanishes_is_named_with_its_last_words(script, torchrun, how):
    path = script(
        f"if rank == 1:\n    print(*range(1, 8), sep='\\nstep ', flush=True)\n    {how}\ntime.sleep(1e6)\n"
    )
    with pytest.raises(
        RankError, match=r"rank 1 of 2 ended without a Python error.*:\nstep 3\n.*\n.*\n.*\nstep 7$"
    ) as caught:
        launch(path, 2, timeout=1e9, torchrun=torchrun)
    assert caught.value.rank == 1


def test_when_the_others_only_lost_their_connection_the_one_that_vanished_is_named(script):
    path = script("if rank == 1:\n    os._exit(3)\ndist.all_reduce(torch.ones(1))\n", GROUP)
    with pytest.raises(RankError) as caught:
        launch(path, 2, torchrun=False)
    assert caught.value.rank == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("x = (\n", "SyntaxError: '(' was never closed"),
        ("sys.exit('stop')\n", "SystemExit: stop"),
        ("sys.exit(2)\n", "SystemExit: 2"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_other_ways_to_fail(script, body, text):
    with pytest.raises(RankError, match=rf"rank 0 of 1 failed with {re.escape(text)}") as caught:
        launch(script(body), 1, torchrun=False)
    assert "rank.py" not in str(caught.value)


def test_leaving_with_code_zero_is_no_failure(script):
    assert launch(script("print(rank)\nsys.exit(0)\n"), 2, torchrun=False).outputs == ("0\n", "1\n")


def test_a_launcher_that_cannot_start_says_why(script, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    monkeypatch.setenv("PET_MAX_RESTARTS", "many")
    with pytest.raises(RankError, match=r"the launcher itself failed \(exit codes(.|\n)*many"):
        launch(script(""), 1)


INTERRUPTED = """
import signal, sys
from labkit.course import launch
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts tests in the background may ignore it
try:
    launch(sys.argv[1], 2, torchrun=sys.argv[2] == "True")
except KeyboardInterrupt:
    print("interrupted")
"""


@posix
@pytest.mark.parametrize(
    ("torchrun", "end"), [(False, signal.SIGINT), (True, signal.SIGINT), (True, signal.SIGKILL)]
)
def test_an_interrupt_or_a_killed_notebook_leaves_no_process(script, tmp_path, torchrun, end, temporary):
    path = script("print('here', flush=True)\ntime.sleep(1000)\n")
    environment = os.environ | {"PYTHONPATH": str(Path(labkit.__file__).parents[1])}
    command = [sys.executable, "-c", INTERRUPTED, str(path), str(torchrun)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while (
        len(written := [f for f in tmp_path.glob("*.pid") if f.read_text()]) < 2 and time.monotonic() < until
    ):
        time.sleep(0.05)
    assert len(written) == 2
    process.send_signal(end)
    output, _ = process.communicate(timeout=60)
    if end == signal.SIGINT:
        assert output == "interrupted\n"
        assert list(temporary.iterdir()) == []
    else:  # nobody was left to clear up the folder; the processes end all the same,
        for file in tmp_path.glob("*.pid"):
            assert not alive(int(file.read_text()))
        assert len(list(temporary.iterdir())) == 1
        launch(script(""), 1, torchrun=False)  # the next launch clears it up


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("none.py", 2), {}, FileNotFoundError, "script: there is no file none.py"),
        (("script.py", 0), {}, ValueError, "processes must be from 1 to 16, got 0"),
        (("script.py", 17), {}, ValueError, "processes must be from 1 to 16, got 17"),
        (("script.py", "two"), {}, TypeError, "processes must be a whole number, got 'two'"),
        (("script.py", 2), {"timeout": 0}, ValueError, "timeout must be above 0, got 0"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_started(
    script, tmp_path, monkeypatch, arguments, options, error, text
):
    script("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        launch(*arguments, **options)
    assert list(tmp_path.glob("*.pid")) == []


def test_errors_are_in_the_language_in_use(script):
    def failing(body, **options):
        with pytest.raises(RankError) as caught:
            launch(script(body), 1, torchrun=False, **options)
        return str(caught.value).partition("\n\n")[0]

    for body, options in (("1 / 0\n", {}), ("time.sleep(9)\n", {"timeout": 1}), ("os._exit(3)\n", {})):
        labkit.set_language("en")
        english = failing(body, **options)
        labkit.set_language("zh")
        chinese = failing(body, **options)
        assert re.search("[一-鿿]", chinese)
        assert glossary.problems(english, chinese) == []


def test_it_shows_that_nothing_was_printed(script):
    assert repr(launch(script(""), 1, torchrun=False)) == "(nothing was printed)"


def test_exit_functions_and_threads_of_a_rank_run_to_their_end(script):
    path = script(
        "import atexit, threading\n"
        "atexit.register(print, 'at exit')\n"
        "go = threading.Event()\n"
        "threading.Thread(target=lambda: (go.wait(), print('thread'))).start()\n"
        "go.set()\n"
    )
    assert set(launch(path, 1, torchrun=False).outputs[0].split("\n")) == {"thread", "at exit", ""}


def test_a_rank_is_what_python_makes_of_its_script(script):
    path = script(
        "import __main__\nos.chdir('/')\nprint(__file__, sys.argv, __annotations__, __main__.__loader__.path)\n"
    )
    (printed,) = launch(path, 1, "a", torchrun=False).outputs
    assert printed == f"{path} ['script.py', 'a'] {{}} {path}\n"


def test_what_is_shown_has_a_most_and_the_whole_is_kept():
    texts = ("x" * 10**6, "".join(f"line {n}\n" for n in range(10**5)), "short\n", "")
    shown = repr(launcher_module.Launched("s.py", texts, 1.0))
    assert len(shown) < 100_000
    lines = shown.splitlines()
    assert lines[:3] == [
        "rank 0: " + "x" * 6250,
        "rank 0: … (987,500 characters are left out here; `.outputs[0]` has the whole)",
        "rank 0: " + "x" * 6250,
    ]
    assert lines[3] == "rank 1: line 0"
    assert lines[-2:] == ["rank 1: line 99999", "rank 2: short"]
    cut = next(line for line in lines if "`.outputs[1]`" in line)
    kept = sum(len(line) - len("rank 1: ") + 1 for line in lines if line.startswith("rank 1: line"))
    assert int(re.search(r"\(([\d,]+)", cut)[1].replace(",", "")) == len(texts[1]) - kept
    assert all(re.fullmatch(r"rank 1: line \d+", line) for line in lines[3:-1] if line != cut), "whole lines"
    labkit.set_language("zh")
    assert "此处省略 987,500 个字符；全文在 `.outputs[0]` 里" in repr(
        launcher_module.Launched("s.py", texts, 1.0)
    )


def test_an_error_of_megabytes_is_shown_in_part(script):
    with pytest.raises(RankError) as failed:
        launch(script(PLAIN + "raise ValueError('x' * 10**6)\n"), 1, torchrun=False)
    assert len(str(failed.value)) < 51_000
    assert "`.whole` has the whole" in str(failed.value)
    assert failed.value.whole.endswith("xxx")
    assert failed.value.rank == 0


def test_ranks_speak_the_language_in_use(script):
    labkit.set_language("zh")
    done = launch(script(PLAIN + "print(os.environ['LABKIT_LANG'])\n"), 1, torchrun=False)
    assert done.outputs == ("zh\n",)
