"""Open the course in JupyterLab, in the learner's own copy of it, with or without a screen.

It serves until it is interrupted. Of JupyterLab's settings only defaults are given, for this one server, so that
whatever the reader has set for themselves stays: their language, no question about news; and the kernel called python3
is the Python that labkit runs in, not another one that the computer also has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import labkit_course
from labkit.base.extras import need
from labkit.base.files import reason
from labkit_course.notebooks import copies as lessons

from .lessons import add_folder, folder_of, lay_out
from .usage import CannotWrite, Parser, UsageError, add_options, at_least, bad_usage, environment
from .wording import Wording

LANGUAGE_PACK = "jupyterlab-language-pack-zh-CN"

WORDING = Wording(
    "lab", lesson={"nargs": "?", "completer": lambda **_: lessons.names()}, port={"type": at_least(1, 65535)}
)
_OURS = ("--dir", "--port", "--lang", "--help", "-h")


def parted(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and JupyterLab's: its options wherever they stand, and all that stands behind ``--``."""
    at = argv.index("--") if "--" in argv else len(argv)
    ours: list[str] = []
    theirs: list[str] = []
    words = argv[:at][::-1]
    while words:
        word = words.pop()
        option, equals, _ = word.partition("=")
        own = not word.startswith("-") or option in _OURS
        takes_value = None if own else "." in option or _jupyterlabs().get(option)  # --ServerApp.token
        (ours if takes_value is None else theirs).append(word)
        if takes_value and not equals and words and not words[-1].startswith("-"):
            theirs.append(words.pop())
    return ours, theirs + argv[at + 1 :]


def _jupyterlabs() -> dict[str, bool]:
    """JupyterLab's options; and of each, whether it has a value."""
    need("jupyterlab")
    from jupyterlab.labapp import LabApp  # heavy: the server

    takes = dict.fromkeys(LabApp.aliases, True) | dict.fromkeys(LabApp.flags, False)
    return {f"{'-' * min(len(name), 2)}{name}": value for name, value in takes.items()}


def add_arguments(parser: Parser) -> None:
    add_options(parser, WORDING, "lesson")
    add_folder(parser)
    add_options(parser, WORDING, "port")
    if "jupyterlab.labapp" in sys.modules:  # known where an option that is not ours was typed
        parser.passed_on = _jupyterlabs().keys()


def run(options: argparse.Namespace) -> int:
    need("jupyterlab", "ipykernel", "ipywidgets", "matplotlib")
    root, page = _given(options.lesson) or _of_the_copy(options)
    command = [f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/{page}"]
    if options.port is not None:
        command.append(f"--ServerApp.port={options.port}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # a container's only user
    if not has_screen():
        command.append("--no-browser")
    if not any("log" in argument or argument == "--debug" for argument in options.rest):
        # The address is said all the same, and our own lines stay in sight.
        command.append("--log-level=WARN")
    WORDING.tell("starting", flush=True)
    Lab = _lab()
    with (
        tempfile.TemporaryDirectory(prefix="labkit-lab-", ignore_cleanup_errors=True) as folder,
        environment(_settings(Path(folder), options.reader)),
    ):
        try:
            Lab.launch_instance(command + options.rest)
        except PermissionError as error:  # a home folder that is not there, or not the reader's
            raise CannotWrite(
                en=f"JupyterLab cannot write {error.filename}: {reason(error)}. It needs a home folder: "
                "HOME=/tmp/me labkit lab --dir /tmp/me/course",
                zh=f"JupyterLab 无法写入 {error.filename}：{reason(error)}。它需要一个主目录："
                "HOME=/tmp/me labkit lab --dir /tmp/me/course",
            ) from None
    return 0


def _lab() -> Any:
    """JupyterLab's application, which prints its address once it answers there. (Its own line comes too early, among
    warnings.)"""
    from jupyterlab.labapp import LabApp  # heavy: the server

    class Lab(LabApp):  # type: ignore[misc]
        @classmethod
        def get_extension_package(cls) -> str:
            return "jupyterlab"

        @classmethod
        def initialize_server(cls, *arguments: Any, **more: Any) -> Any:
            server = super().initialize_server(*arguments, **more)
            server.io_loop.add_callback(_tell_where, server)
            return server

    return Lab


def _tell_where(server: Any) -> None:
    print(f"{WORDING['ready']}\n  {server.local_url}", flush=True)


def _given(lesson: str | None) -> tuple[Path, str] | None:
    """The folder to serve and the notebook in it, if what was asked for is a file of the reader's own."""
    if lesson is None or not lesson.endswith(".ipynb"):
        return None
    path = Path(lesson)
    if not path.is_file():
        if len(path.parts) <= 2:  # zh/03_split.ipynb is a name, too
            with suppress(FileNotFoundError):
                lessons.find(path.as_posix(), path)
                return None
        raise UsageError(
            en=f"no such notebook: {lesson!r}; for the course's own a name is enough: labkit lab 03_split",
            zh=f"没有笔记本 {lesson!r}；课程里的笔记本写名字就行：labkit lab 03_split",
        )
    if not path.is_absolute() and ".." not in path.parts:
        return Path.cwd(), path.as_posix()
    return path.resolve().parent, path.name


def _of_the_copy(options: argparse.Namespace) -> tuple[Path, str]:
    """The learner's copy, laid out and up to date, and the notebook in it that was asked for."""
    folder = folder_of(options)
    with bad_usage(FileNotFoundError):
        found = lessons.find(options.lesson or lessons.INDEX, folder)
    lay_out(folder)
    copy = next((copy for copy in found if copy.language == options.reader), found[0])
    return folder.resolve(), f"{copy}.ipynb"


def _settings(folder: Path, language: str) -> dict[str, str]:
    """Make Jupyter's defaults for one server in ``folder``; gives the environment that makes it look there first."""
    news = "@jupyterlab/apputils-extension:notification"
    defaults: dict[str, dict[str, object]] = {news: {"fetchNews": "false"}}
    if language == "zh":
        with suppress(metadata.PackageNotFoundError):
            metadata.version(LANGUAGE_PACK)
            defaults["@jupyterlab/translation-extension:plugin"] = {"locale": "zh_CN"}
    kernel = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "metadata": {"debugger": True},
        "env": {"PYTHONSTARTUP": str(Path(labkit_course.__file__).with_name("kernel_startup.py"))},
    }
    for path, content in (
        (folder / "config" / "labconfig" / "default_setting_overrides.json", defaults),
        (folder / "data" / "kernels" / "python3" / "kernel.json", kernel),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content), "utf-8")
    places = {"JUPYTER_CONFIG_PATH": folder / "config", "JUPYTER_PATH": folder / "data"}
    return {
        name: os.pathsep.join(filter(None, (str(place), os.environ.get(name))))
        for name, place in places.items()
    }


def has_screen() -> bool:
    """Whether a browser window could open here."""
    named = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or bool(named)
