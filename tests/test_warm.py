"""A program that a warm Python forks for is as one that Python starts: what it sees, prints, and ends with."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.warm import python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
SEES = """
import atexit, os, random, sys
atexit.register(print, "at exit")
print(__name__, sorted(globals()), sys.argv, sys.path, os.getcwd(), dict(os.environ), sys.dont_write_bytecode)
print([(f.name, f.mode, f.encoding, f.errors, f.isatty()) for f in (sys.stdin, sys.stdout, sys.stderr)])
print(input(), "é", file=sys.stderr)
def fails():
    raise ValueError("of the program")
"""


@pytest.fixture
def both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def run(*words, **environment):
        """Exit code, output and errors of a program, which are the same in either."""
        outcomes = [
            subprocess.run([*command, *words], input="typed\n", capture_output=True, text=True, encoding="utf-8",
                           env=os.environ | environment, timeout=60)
            for command in ([sys.executable], python())
        ]  # fmt: skip
        one, other = [(done.returncode, done.stdout, done.stderr) for done in outcomes]
        assert one == other
        return one

    return run


@pytest.mark.parametrize(
    "end", ["", "fails()", "sys.exit('words')", "sys.exit(300)", "raise KeyboardInterrupt"]
)
def test_it_sees_and_ends_as_others_do(both, end):
    Path("folder").mkdir()
    Path("folder", "program.py").write_text(SEES + end, "utf-8")
    code, out, err = both(
        "folder/program.py", "-x", PYTHONPATH="/somewhere", PYTHONIOENCODING="utf-8:replace", OWN="1"
    )
    assert "typed é" in err
    assert "'OWN': '1'" in out
    assert out.endswith("at exit\n")
    assert code == {"": 0, "sys.exit(300)": 300 - 256, "raise KeyboardInterrupt": -2}.get(end, 1)
    assert both("-c", SEES + end, "a")[0] == code
    Path("module.py").write_text(SEES + end, "utf-8")
    assert both("-m", "module", "a")[0] == code


def test_a_signal_of_its_own_ends_it(both):
    assert both("-c", "import os; os.kill(os.getpid(), 9)")[0] == -9


def test_where_nobody_forks_an_ordinary_python_runs(tmp_path):
    *command, _ = python()
    code = "import sys; print('torch' in sys.modules)"
    assert subprocess.check_output([*command, tmp_path / "gone", "-c", code], text=True) == "False\n"


def test_it_has_torch_without_importing_it_and_labkit_is_imported_anew():
    code = "import sys; print('torch' in sys.modules, 'labkit' in sys.modules); import torch; print(torch.ones(1))"
    done = subprocess.run([*python(), "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True False\ntensor([1.])\n", "")


@pytest.mark.parametrize(("words", "variables"), [
    (["-X", "utf8"], {}), (["-W", "error"], {}), ([], {"PYTHONHASHSEED": "1"}),
    ([], {"OMP_NUM_THREADS": "77"}),
])  # fmt: skip
def test_what_python_or_torch_read_as_they_start_is_left_to_an_ordinary_one(words, variables):
    code = "import sys; print('torch' in sys.modules)"
    command = [*python(), *words, "-c", code]
    assert subprocess.check_output(command, env=os.environ | variables, text=True) == "False\n"


WAITS = """
import os, signal, time
try:
    print(os.getpid(), flush=True)
    while True:
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_what_is_sent_to_the_command_reaches_the_program():
    with subprocess.Popen([*python(), "-c", WAITS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline().strip().isdigit()
        command.send_signal(signal.SIGINT)
        assert (command.stdout.read(), command.wait()) == ("interrupted\n", 0)
    with subprocess.Popen([*python(), "-c", WAITS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline()
        command.kill()
        assert command.stdout.read() == "", "the program has gone with it"
