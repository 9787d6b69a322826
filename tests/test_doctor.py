"""``labkit doctor``: every trouble that it knows is planted, and named with its remedy in both languages."""

import ast
import builtins
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.base.language import using
from labkit.cli import doctor, main
from labkit.cli.doctor import CHECKS, NOTE, OK, PROBLEM


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_LESSONS", str(tmp_path / "mine"))
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))


def report(capsys, *arguments):
    capsys.readouterr()
    code = main(["doctor", "--json", *arguments])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is (code == 0)
    return {check["name"]: SimpleNamespace(**check) for check in found["checks"]}


def test_all_is_told_for_people(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for subject in (
        "Python",
        "PyTorch",
        "GPUs",
        "lessons",
        "packages",
        "kernel",
        "port",
        "console",
        "your copy",
        "progress",
    ):
        assert re.search(rf"^[ !] {subject}  ", shown, re.MULTILINE), subject
    assert "\nLessons run here" in shown or "\nLessons run here; the lines" in shown
    assert (
        len(
            {
                line.index(word)
                for line in shown.splitlines()
                for word in ("3.1", "2.1")
                if f"  {word}" in line
            }
        )
        == 1
    )


def test_all_is_told_in_chinese(capsys):
    assert main(["doctor", "--lang", "zh"]) == 0
    shown = capsys.readouterr().out
    assert re.search("^  课程      使用模拟 GPU，数值放在 CPU 上$", shown, re.MULTILINE)
    assert re.search(r"课程可以运行", shown)
    assert not re.search(r"[()]", shown), "half-width brackets"


def test_json_has_every_check(capsys):
    found = report(capsys)
    assert len(found) == len(CHECKS)
    assert all(check.level in (OK, NOTE, PROBLEM) and check.text for check in found.values())


def other_kernel(monkeypatch):
    from jupyter_client.kernelspec import KernelSpecManager

    monkeypatch.setattr(
        KernelSpecManager, "get_kernel_spec", lambda *_: SimpleNamespace(argv=["/opt/conda/bin/python"])
    )


def no_package(monkeypatch):
    there = metadata.version

    def version(name):
        if name in ("papermill", "jupyterlab-language-pack-zh-CN"):
            raise metadata.PackageNotFoundError(name)
        return there(name)

    monkeypatch.setattr(metadata, "version", version)


def no_torch(monkeypatch):
    there = builtins.__import__

    def load(name, *arguments, **more):
        if name == "torch":
            raise OSError("libtorch_cpu.so: cannot open shared object file")
        return there(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", load)


def a_python(*version):
    def plant(monkeypatch):
        monkeypatch.setattr(sys, "version_info", (*version, 1, "final", 0))

    plant.__name__ = f"python_{version[0]}_{version[1]}"
    return plant


def other_torch(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__version__", "3.0.1+cu140")


def no_home(monkeypatch):
    monkeypatch.delenv("LABKIT_LESSONS")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))


def read_only(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)


def full_disk(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))


def little_memory(monkeypatch):
    from labkit.machine.state import host

    monkeypatch.setattr(host, "available", lambda: 2**29)


def a_driver(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def no_font(monkeypatch):
    from labkit.view import figure

    monkeypatch.setattr(figure, "chinese_font", lambda: None)


def no_widgets(monkeypatch):
    import jupyter_core.paths

    monkeypatch.setattr(jupyter_core.paths, "jupyter_path", lambda: ["/nowhere"])


def no_port(monkeypatch):
    def bind(*_):
        raise OSError("in use")

    monkeypatch.setattr(socket, "socket", lambda: SimpleSocket(bind))


class SimpleSocket:
    def __init__(self, bind):
        self.bind = bind

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def setsockopt(self, *_):
        pass


TROUBLES = [
    (a_python(3, 10), "python", PROBLEM, sys.executable, "3.11"),
    (a_python(3, 9), "python", PROBLEM, sys.executable, "python3.14 -m venv .venv"),
    (a_python(3, 15), "python", NOTE, sys.executable, "3.14"),
    (no_torch, "pytorch", PROBLEM, "cannot be imported: libtorch_cpu.so", "pip install torch"),
    (other_torch, "pytorch", NOTE, "3.0.1+cu140", "2.12, 2.13"),
    (a_driver, "gpus", NOTE, "NVIDIA", "CUDA"),
    (little_memory, "memory", NOTE, "512 MiB", "1 GiB"),
    (no_package, "packages", PROBLEM, "papermill", 'pip install "labkit[lab]"'),
    (no_widgets, "widgets", PROBLEM, "JupyterLab", "pip install --force-reinstall jupyterlab_widgets"),
    (other_kernel, "kernel", NOTE, "/opt/conda/bin/python", "ipykernel install --user --name labkit"),
    (no_port, "port", PROBLEM, "8888", "--port"),
    (no_home, "copy", PROBLEM, "", "LABKIT_LESSONS"),
    (read_only, "copy", PROBLEM, "mine", "--dir"),
    (full_disk, "copy", NOTE, "1 MiB", "--dir"),
    (read_only, "progress", NOTE, "progress.json", "LABKIT_PROGRESS"),
]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("plant", "name", "level", "text", "remedy"), TROUBLES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_trouble_is_named_with_its_remedy(capsys, monkeypatch, plant, name, level, text, remedy, language):
    if plant is a_driver and report(capsys)["gpus"].text != "0":
        pytest.skip("this computer has a GPU that PyTorch uses")
    plant(monkeypatch)
    found = report(capsys, "--lang", language)[name]
    assert found.level == level
    assert (text if language == "en" else "") in found.text
    assert remedy in found.remedy
    if language == "zh":
        assert re.search("[一-龥]", found.text)
        assert not re.search(r"[一-龥]\(|\)[一-龥]", found.text + found.remedy)


def test_every_python_that_labkit_is_for_is_well(capsys, monkeypatch):
    for minor in range(doctor.OLDEST[1], doctor.NEWEST[1] + 1):
        monkeypatch.setattr(sys, "version_info", (3, minor, 1, "final", 0))
        assert doctor._python().level == OK


def test_what_is_found_is_told_at_once(capsys, monkeypatch):
    """The checks behind it can take seconds."""
    told = []

    def check():
        told.append(capsys.readouterr().out)
        return doctor.Found("as it is")

    monkeypatch.setattr(doctor, "CHECKS", dict.fromkeys(("labkit", "python", "port"), check))
    main(["doctor"])
    assert [text.split() for text in told] == [[], ["labkit", "as", "it", "is"], ["Python", "as", "it", "is"]]


def test_the_oldest_pythons_get_as_far_as_to_be_told(monkeypatch):
    """What runs before the check of Python has nothing in it that Python 3.9 cannot read."""
    program = (
        "import sys, labkit.cli.doctor as d; d._python(); print(*(m.__file__ for n, m in sys.modules.items() "
    )
    program += "if n.partition('.')[0] == 'labkit' and m.__file__), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    files = [Path(line) for line in done.stdout.splitlines()]
    assert len(files) > 8
    for file in files:
        ast.parse(file.read_text("utf-8"), str(file), feature_version=(3, 9))


def test_without_torch_what_needs_it_is_left_out_and_the_rest_is_told(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = report(capsys)
    assert found["pytorch"].level == PROBLEM
    assert "gpus" not in found
    assert {"python", "packages", "port", "console"} <= set(found)


def test_a_missing_font_disturbs_only_those_who_read_chinese(capsys, monkeypatch):
    no_font(monkeypatch)
    assert report(capsys)["font"].level == OK
    found = report(capsys, "--lang", "zh")["font"]
    assert (found.level, "fonts-noto-cjk" in found.remedy) == (NOTE, True)


def test_a_taken_port_is_told_with_the_one_that_would_be_used(capsys):
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 8888))
            taken.listen()
        except OSError:
            pass  # somebody else has it: so much the better
        found = report(capsys)["port"]
    assert found.level == OK
    assert re.fullmatch(r"8888 is taken: 88\d\d would be used", found.text)


def test_a_check_that_fails_itself_does_not_keep_the_others_from_being_told(capsys, monkeypatch):
    def _broken():
        raise ValueError("odd")

    monkeypatch.setattr(doctor, "CHECKS", {"font": _broken, "python": CHECKS["python"]})
    found = report(capsys)
    assert found["font"].text == "ValueError: odd"
    assert found["python"].level == OK


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(("levels", "code"), [([OK], 0), ([OK, NOTE], 0), ([PROBLEM, OK], 1)])
def test_only_a_problem_fails_the_command(capsys, monkeypatch, form, levels, code):
    checks = {
        name: lambda level=level: doctor.Found("as it is", level)
        for name, level in zip(CHECKS, levels, strict=False)
    }
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert main(["doctor", *form]) == code


def test_the_report_ends_with_what_it_comes_to(capsys, monkeypatch):
    other_kernel(monkeypatch)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "\n! kernel" in shown
    assert "may disturb" in shown
    no_package(monkeypatch)
    assert main(["doctor", "--lang", "zh"]) == 1
    shown = capsys.readouterr().out
    assert "\nx 软件包" in shown
    assert "→ pip install" in shown
    assert "还不能在这里运行" in shown


def test_what_was_begun_and_answered_is_counted(capsys, tmp_path):
    main(["lessons", "copy", str(tmp_path / "mine")])
    path = tmp_path / "mine" / "en" / "03_split.ipynb"
    path.write_text(path.read_text("utf-8").replace("num_gpus = 8", "num_gpus = 3"), "utf-8")
    (tmp_path / "progress.json").write_text('{"done": ["03.idle", "03.ceil"]}', "utf-8")
    found = report(capsys)
    assert found["copy"].text == f"{tmp_path / 'mine'}: 1 begun"
    assert found["progress"].text == f"{tmp_path / 'progress.json'}: 2 answered"
    with using("zh"):
        assert doctor._copy().text.endswith("已开始 1 个")


def test_real_gpus_are_named_and_used_where_there_are_several(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: f"GPU {k}")
    sizes = SimpleNamespace(total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda k: sizes)
    with using("en"):
        gpus, lessons = doctor._gpus(), doctor._lessons()
    assert (gpus.level, lessons.level) == (OK, OK)
    assert "GPU 0 (24 GiB), GPU 1 (24 GiB)" in gpus.text
    assert "2" in lessons.text
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with using("en"):
        assert "GPU cuda:0" in doctor._lessons().text


def test_progress_that_is_off_or_nowhere_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_PROGRESS", "off")
    with using("en"):
        assert doctor._progress() == doctor._found("ok progress-off")
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))
    with using("en"):
        found = doctor._progress()
    assert (found.level, found.text) == (NOTE, f"{tmp_path}: it is a folder")
