"""``labkit run`` is ``python``: each program is run by both, and what comes out is compared."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from labkit_cli.ending import LESSONS, hint_of

ROOT = Path(__file__).parents[2]
LABKIT = [sys.executable, "-m", "labkit", "run"]


def outcome(command, folder, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LABKIT")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120, **options
    )
    return done.returncode, *(re.sub("0x[0-9a-f]+", "ADDRESS", text) for text in (done.stdout, done.stderr))


def alike(folder, *arguments, **options):
    """The outcome of both, which must be the same."""
    expected = outcome([sys.executable, *arguments], folder, **options)
    found = outcome([*LABKIT, "--gpus", "2", *arguments], folder, **options)
    assert found == expected
    return expected


REPORT = """
import __main__, atexit, inspect, pickle, sys, threading, warnings
class Kept: pass
note: int = 1
print({name: value for name, value in vars(__main__).items() if name.startswith("__") and name != "__builtins__"})
print(sys.argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions, __builtins__)
print(pickle.dumps(Kept()), sys.excepthook is sys.__excepthook__)
try:
    print(inspect.getsource(Kept))
except OSError as error:
    print(error)
atexit.register(print, "registered first")
atexit.register(print, "registered last")
done = threading.Event()
threading.Thread(target=lambda: (done.wait(), print("a thread goes on"))).start()
atexit.register(print, "thread over")
done.set()
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "report.py").write_text(REPORT)
    for name in ("folder", "package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__main__.py").write_text(REPORT)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "part.py").write_text(REPORT)
    with zipfile.ZipFile(tmp_path / "zipped.pyz", "w") as zipped:
        zipped.writestr("__main__.py", REPORT)
    return tmp_path


@pytest.mark.parametrize("arguments", [
    ["report.py", "-x", "--gpus", "3", "-m"], ["./folder/../report.py"], ["folder", "a"], ["zipped.pyz"],
    ["-m", "report", "-c"], ["-m", "package"], ["-m", "package.part", "--", "a"],
    ["-c", REPORT, "-m", "--", "a"],
    ["-u", "-OO", "-B", "-W", "error::ImportWarning", "-Xdev", "-q", "report.py"],
], ids=lambda arguments: " ".join(arguments).replace(REPORT, "CODE"))  # fmt: skip
def test_what_a_program_sees_is_what_it_sees_under_python(program, arguments):
    code, out, _ = alike(program, *arguments)
    assert code == 0
    assert out.endswith("a thread goes on\nthread over\nregistered last\nregistered first\n")


def test_a_program_from_standard_input(program):
    assert alike(program, "-", "a", input=REPORT)[0] == 0


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("import sys; sys.exit(7)", 7), ("import sys; sys.exit()", 0), ("import sys; sys.exit('bad luck')", 1),
        ("raise KeyboardInterrupt", -2), ("import os; os.kill(os.getpid(), 15)", -15), ("import os; os._exit(3)", 3),
        ("def f(): 1/0\ntry: f()\nexcept Exception as error: raise ValueError('so') from error", 1),
        ("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])", 1), ("import not_there", 1),
        ("import threading\nt = threading.Thread(target=lambda: 1/0, name='t')\nt.start(); t.join()", 0),
        ("import sys\nsys.excepthook = lambda *error: print('mine:', error[1])\n1/0", 1),
        ("import atexit\natexit.register(lambda: 1/0)", 0), ("print('x'); import sys; print('y', file=sys.stderr)", 0),
        ("if True print(1)", 1), ("import warnings; warnings.warn('careful')", 0),
    ],
)  # fmt: skip
def test_a_program_ends_as_it_does_under_python(tmp_path, code, ends):
    (tmp_path / "script.py").write_text(code)
    assert alike(tmp_path, "script.py")[0] == ends


@pytest.mark.parametrize("arguments", [["-m", "no_such_module"], ["-m", "no.such"], ["empty"]])
def test_what_python_cannot_find_python_says(tmp_path, arguments):
    (tmp_path / "empty").mkdir()
    assert alike(tmp_path, *arguments)[0] == 1


def test_a_script_whose_name_is_like_an_option(tmp_path):
    (tmp_path / "-x.py").write_text("import sys; print(sys.argv)")
    assert outcome([*LABKIT, "--", "-x.py", "-u"], tmp_path) == (0, "['-x.py', '-u']\n", "")


@pytest.mark.parametrize(
    "first", [f"#!{sys.executable}", "#!/bin/sh\n'''exec' /a/long/path/python \"$0\"\n' '''", "#!/bin/sh"]
)
def test_a_program_in_path_is_found_as_a_shell_finds_it(tmp_path, monkeypatch, first):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    show = "import sys, torch; print(torch.cuda.device_count(), sys.argv[1:])"
    text = show if "python" in first else f"{sys.executable} -c '{show}' \"$@\""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "launch_it").write_text(f"{first}\n{text}\n")
    (tmp_path / "bin" / "launch_it").chmod(0o755)
    assert outcome([*LABKIT, "--gpus", "3", "launch_it", "-x", "1"], tmp_path) == (0, "3 ['-x', '1']\n", "")
    code, out, err = outcome([*LABKIT, "launch_that"], tmp_path)
    assert (code, out) == (2, "")
    assert "no such script: launch_that" in err


def test_a_reader_that_has_gone(tmp_path):
    code = "import sys\nfor k in range(100000): print(k)"
    ends = []
    for command in ([sys.executable], LABKIT):
        with subprocess.Popen(
            [*command, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        ) as running:
            running.stdout.readline()
            running.stdout.close()
            ends.append((running.stderr.read().splitlines()[-1], running.wait()))
    assert ends[0] == ends[1]
    assert "BrokenPipeError" in ends[0][0]


def test_python_that_never_imports_torch_does_not_load_labkit(tmp_path):
    code = (
        "import os, sys, subprocess; print([name for name in sys.modules if name.startswith('labkit')])\n"
        "print([name for name in os.environ if name.startswith('LABKIT')])"
    )
    assert outcome([*LABKIT, "-c", code], tmp_path)[1] == "[]\n['LABKIT_MACHINE', 'LABKIT_ENTER']\n"


def test_a_script_without_torch_is_told_that_there_is_no_summary(tmp_path):
    (tmp_path / "plain.py").write_text("print('done')")
    for options, said in ((["--summary"], True), (["--timeline", "t.html"], True), ([], False)):
        code, out, err = outcome([*LABKIT, *options, "plain.py"], tmp_path)
        assert (code, out, "plain.py never imported torch" in err) == (0, "done\n", said)
    assert not (tmp_path / "t.html").exists()


def test_errors_beside_torch_are_shown_as_without_a_machine(tmp_path):
    (tmp_path / "script.py").write_text(
        "import threading, sys\nimport torch\n"
        "def f(x):\n    return torch.ones(2) @ x\n"
        "t = threading.Thread(target=f, args=(3,), name='t')\nt.start(); t.join()\n"
        "print(sys.excepthook is sys.__excepthook__, torch.__spec__.loader is torch.__loader__)\n"
        "try:\n    f(torch.ones(3))\nexcept RuntimeError as error:\n    raise ValueError('so') from error\n"
    )
    code, out, err = alike(tmp_path, "script.py")
    assert (code, out) == (1, "True True\n")
    assert "Exception in thread t" in err


def test_a_timeline_by_the_times_of_a_gpu_is_the_same_at_each_run(tmp_path):
    """Replicas that compute at once are drawn at once; more rows take longer on each GPU."""
    (tmp_path / "script.py").write_text(
        "import sys, torch\nfrom torch import nn\n"
        "from labkit.trace import emitting\n"
        "model = nn.DataParallel(nn.Sequential(nn.Linear(16, 2048), nn.Linear(2048, 2048)).cuda())\n"
        "for rows in 64, 1024:\n"
        "    model(torch.ones(rows, 16)).sum().backward()\n"
        "for event in emitting.recording[0].trace.events:\n"
        "    if event.phase == 'parallel_apply' and event.direction == 'forward':\n"
        "        print(event.call, event.start, event.seconds)\n"
    )
    timed = [*LABKIT, "--gpus", "4", "--times", "h100", "--timeline"]
    first, again = (outcome([*timed, f"{at}.html", "script.py"], tmp_path) for at in range(2))
    assert first == again
    assert first[0] == 0, first[2]
    assert (tmp_path / "0.html").read_bytes() == (tmp_path / "1.html").read_bytes()
    assert "The times are those of H100 SXM" in (tmp_path / "0.html").read_text("utf-8")
    calls = {}
    for line in first[1].splitlines():
        call, start, seconds = line.split()
        calls.setdefault(call, []).append((float(start), float(seconds)))
    fewer, rows = calls.values()
    assert len(rows) == 4
    assert max(start for start, _ in rows) < min(start + seconds for start, seconds in rows)
    assert all(long > 2 * short for (_, long), (_, short) in zip(rows, fewer, strict=True))


def test_the_summary_and_the_timeline(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os, torch\nfrom torch import nn\n"
        "model = nn.DataParallel(nn.Linear(5, 2).cuda())\n"
        "for rows in (6, 2):\n    model(torch.ones(rows, 5)).sum().backward()\n"
        "try:\n    torch.cuda.CUDAGraph()\nexcept NotImplementedError:\n    pass\n"
        "hasattr(torch._C, '_cuda_nothing')\n"
        "os.mkdir('elsewhere')\nos.chdir('elsewhere')\n"
        "print([torch.cuda.max_memory_allocated(k) for k in range(2)])\n"
    )
    code, out, err = outcome(
        [*LABKIT, "--gpus", "4", "--summary", "--timeline", "t.html", "script.py"], tmp_path
    )
    assert (code, out) == (0, "[2560, 1536]\n"), err
    lines = err.splitlines()
    assert lines[:5] == [
        "labkit: 4 simulated GPUs, 2 data-parallel calls",
        "  cuda:0  peak 2.50 KiB of 16.00 GiB, 3 rows",
        "  cuda:1  peak 1.50 KiB of 16.00 GiB, 3 rows",
        "  cuda:2  peak 1.50 KiB of 16.00 GiB, 2 rows, idle in 1 call",
        "  cuda:3  peak 0 bytes of 16.00 GiB, no rows: idle",
    ]
    assert lines[5] == "could not be simulated:"
    assert lines[6].startswith("  labkit's simulated machine has no torch._C._CUDAGraph")
    assert lines[7].startswith("Memory, random numbers and more are approximations")
    assert len(lines) == 8
    page = (tmp_path / "t.html").read_text("utf-8")
    english = page[: page.index('<section lang="zh"')]
    assert re.findall("<h2>(.*?)</h2>", english)[-1] == "Memory"
    assert re.search(
        r"cuda:0 +2.5 KiB  Linear, script.py:5\ncuda:1 +1.5 KiB  Linear, script.py:5\n", english
    ), "the line of the peak"
    assert re.search(r"cuda:3 +0 B</pre>", english)
    for text in (
        "The times are those of this computer, whose processor computes for all GPUs",
        "图中的时间是这台电脑的",
        "Timeline of script.py",
        "script.py 的时间线",
        "The last of 2 calls",
        "cuda:2 · compute",
    ):
        assert text in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_what_a_script_says_of_its_gpus_before_torch_and_what_it_does_with_them_after_its_end(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3,1'\n"
        "import atexit, threading, torch\n"
        "def use(): print(torch.ones(2, device='cuda:1').device, torch.cuda.get_device_properties(0).pci_bus_id)\n"
        "atexit.register(use)\n"
        "def late():\n    threading.main_thread().join()\n    use()\n"
        "threading.Thread(target=late).start()\n"
        "torch.ones(2, device='cuda:2')\n"
    )
    code, out, err = outcome([*LABKIT, "--gpus", "4", "script.py"], tmp_path)
    assert (code, out) == (1, "cuda:1 3\ncuda:1 3\n"), err
    assert "invalid device ordinal" in err
    assert "labkit: lesson 05_devices explains this" in err


@pytest.mark.parametrize("lesson", sorted({name for _, name in LESSONS}))
def test_the_lessons_that_errors_point_to_are_there(lesson):
    assert (ROOT / "notebooks" / "en" / f"{lesson}.ipynb").is_file()


def test_an_error_that_no_lesson_explains_is_left_alone():
    assert hint_of(ValueError("a fault of the script's own")) is None
    assert "06_batch_dim" in hint_of(
        RuntimeError("Input tensor at index 1 has invalid shape [1, 2], but expected [1, 3]")
    )


def test_the_gpus_pass_for_a_model_in_children_too(tmp_path):
    ask = "import torch; print(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1] >> 20)"
    code = (
        f"{ask}; import subprocess, sys; sys.stdout.flush(); subprocess.run([sys.executable, '-c', {ask!r}])"
    )
    said = outcome([*LABKIT, "--gpu-model", "l4", "-c", code], tmp_path)
    assert said == (0, "NVIDIA L4 22563\n" * 2, "")
    code, out, err = outcome([*LABKIT, "--gpu-model", "A100", "-c", code], tmp_path)
    assert (code, out) == (2, "")
    assert err == (
        "labkit: gpu_model must be one of V100, A100-40, A100-80, H100, H200, T4, L4, RTX-4090, got 'A100'\n"
    )
