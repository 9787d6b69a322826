"""Whatever a console can write, every command's output gets there, and can be read."""

import io
import logging
import re
import sys

import pytest

from labkit.base.language import using
from labkit.base.ours import PACKAGES
from labkit_cli import COMMANDS, console, main

ENCODINGS = ("ascii", "gbk", "cp1252", "latin-1", "utf-8")


@pytest.fixture
def labkit(monkeypatch, tmp_path):
    """The command as a process of its own has it, on a console of some encoding: its exit code and what is written."""

    def command(encoding, *arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["labkit", *arguments])
        written = []
        for name in ("stdout", "stderr"):
            stream = io.TextIOWrapper(io.BytesIO(), encoding)
            monkeypatch.setattr(sys, name, stream)
            written.append(stream)
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code
        for stream in written:
            stream.flush()
        out, err = (stream.buffer.getvalue().decode(encoding) for stream in written)
        return code, out, err

    return command


CHINESE = re.compile("[\u4e00-\u9fff]")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(labkit, command, encoding):
    code, out, err = labkit(encoding, "--lang", "zh", command, "--help")
    assert code == 0
    shown = encoding in ("gbk", "utf-8")
    assert bool(CHINESE.search(out)) == shown
    assert err == (
        "" if shown else f"labkit: this console's encoding, {encoding}, has no Chinese: using English\n"
    )
    assert "\\u" not in out


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_complains(labkit, command, encoding):
    code, out, err = labkit(encoding, command, "--lang", "zh", "--gpus", "⌈½⌉ 一")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("labkit: ")
    assert "Traceback" not in err


MODELS = """
import torch
class Turned(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).transpose(0, 1)
def make():
    print("⌈7 / 2⌉ ✗ ½ 一")
    return Turned(5, 2), torch.randn(16, 5)
"""


@pytest.mark.parametrize("encoding", ["gbk", "cp1252", "ascii"])
def test_a_check_up_is_shown_and_its_exit_code_is_its_own(labkit, tmp_path, monkeypatch, encoding):
    (tmp_path / "shown.py").write_text(MODELS, "utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, out, err = labkit(encoding, "diagnose", "shown.py:make", "--gpus", "2", "--lang", "zh")
    del sys.modules["shown"]
    assert code == 1, err
    assert "batch_moved" in out
    assert bool(CHINESE.search(out)) == (encoding == "gbk")
    assert re.search(r". ?7 / 2.", err)  # what the model prints goes there


def test_what_is_printed_in_another_ones_process_is_left_to_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sys.stdout.errors
    with using("en"):
        assert main(["run", "none.py"]) == 2
    assert sys.stdout.errors == before


def test_a_crash_of_labkit_is_no_finding(monkeypatch, capsys):
    from labkit_cli import doctor

    def run(options):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(doctor, "run", run)
    assert main(["doctor"]) == 70
    err = capsys.readouterr().err
    assert "ZeroDivisionError: ours" in err
    assert err.endswith("labkit: this is a bug in labkit, not your mistake\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_long_work_says_what_it_is_at_where_somebody_looks(monkeypatch, tmp_path, terminal):
    class Shown(io.StringIO):
        def isatty(self):
            return terminal

    shown = Shown()
    factory = "import torch\ndef make(): return torch.nn.Linear(5, 2), torch.ones(8, 5)\n"
    (tmp_path / "progress_models.py").write_text(factory)
    monkeypatch.setattr(sys, "stderr", shown)
    loggers = list(map(logging.getLogger, PACKAGES))
    before = [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    try:
        console.show_progress()
        assert main(["diagnose", f"{tmp_path / 'progress_models.py'}:make", "--gpus", "2"]) == 0
    finally:
        for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
    lines = [
        "labkit: loading PyTorch …",
        "labkit: Linear runs on one GPU and on 2 …",
        "labkit: the same in training mode …",
        "labkit: a training step, its memory, and what is left …",
    ]
    assert shown.getvalue().splitlines() == lines * terminal


@pytest.mark.parametrize(
    "words",
    [["diagnose", "--ranks", "2", "train.py"], ["check", "--ranks", "2", "train.py"], ["explain", "."]],
)
def test_what_loads_pytorch_says_so(monkeypatch, tmp_path, caplog, capsys, words):
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO):
        main(words)
    assert caplog.messages[0] == "loading PyTorch"
