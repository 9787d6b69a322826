"""A program that a warm Python forks for is as one that Python starts: what it sees, prints, and ends with."""

import os
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
"""


def outcome(command, words, environment):
    done = subprocess.run(
        [*command, *words], input="typed\n", capture_output=True, text=True, encoding="utf-8", env=environment
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("end", ["sys.exit(300)", "raise KeyboardInterrupt", "os.kill(os.getpid(), 9)"])
def test_it_sees_and_ends_as_others_do(end, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    Path("program.py").write_text(SEES + end, "utf-8")
    environment = os.environ | {"PYTHONPATH": "/somewhere", "PYTHONIOENCODING": "utf-8:replace", "OWN": "1"}
    for words in (["program.py", "-x"], ["-c", SEES + end, "a"], ["-m", "program", "a"]):
        usual, warm = (outcome(command, words, environment) for command in ([sys.executable], python()))
        assert warm == usual
