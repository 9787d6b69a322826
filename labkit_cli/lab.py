"""Open the learner's copy of the course in JupyterLab, with or without a screen.

The server runs until it is interrupted. Its default settings choose the language and switch off the question about
news; the user's own settings win. The kernel python3 is the Python that runs labkit.
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

WORDING = Wording("lab", lesson={"nargs": "?"}, port={"type": at_least(1, 65535)})


def split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return our arguments, and JupyterLab's after ``--``."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def add_arguments(parser: Parser) -> None:
    add_options(parser, WORDING, "lesson")
    add_folder(parser)
    add_options(parser, WORDING, "port")
    parser.advice = str(WORDING["passed-on"])


def run(options: argparse.Namespace) -> int:
    need("jupyterlab", "ipykernel", "ipywidgets", "matplotlib")
    root, page = _find_own_notebook(options.lesson) or _find_in_copy(options)
    command = [f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/{page}"]
    if options.port is not None:
        command.append(f"--ServerApp.port={options.port}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # a container's only user
    if not has_screen():
        command.append("--no-browser")
    if not any("log" in argument or argument == "--debug" for argument in options.rest):
        # Hide JupyterLab's messages: _tell_where prints the address.
        command.append("--log-level=WARN")
    WORDING.tell("starting", flush=True)
    Lab = _lab()
    with (
        tempfile.TemporaryDirectory(prefix="labkit-lab-", ignore_cleanup_errors=True) as folder,
        environment(_settings(Path(folder), options.reader)),
    ):
        try:
            Lab.launch_instance(command + options.rest)
        except PermissionError as error:  # the home folder is missing or belongs to another user
            raise CannotWrite(
                en=f"JupyterLab cannot write {error.filename}: {reason(error)}. It needs a home folder: "
                "HOME=/tmp/me labkit lab --dir /tmp/me/course",
                zh=f"JupyterLab 无法写入 {error.filename}：{reason(error)}。它需要一个主目录："
                "HOME=/tmp/me labkit lab --dir /tmp/me/course",
            ) from None
    return 0


def _lab() -> Any:
    """Return a JupyterLab application that prints the address as soon as the server accepts requests."""
    from jupyterlab.labapp import LabApp  # slow: imports the server

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


def _find_own_notebook(lesson: str | None) -> tuple[Path, str] | None:
    """Return the folder to serve and the notebook in it, if ``lesson`` is the path of a file; None for a name."""
    if lesson is None or not lesson.endswith(".ipynb"):
        return None
    path = Path(lesson)
    if not path.is_file():
        if len(path.parts) <= 2:  # zh/03_split.ipynb is a lesson's name
            with suppress(FileNotFoundError):
                lessons.find(path.as_posix(), path)
                return None
        raise UsageError(
            en=f"no such notebook: {lesson!r}; for a lesson of the course give its name: labkit lab 03_split",
            zh=f"没有笔记本 {lesson!r}；课程里的笔记本写名字就行：labkit lab 03_split",
        )
    if not path.is_absolute() and ".." not in path.parts:
        return Path.cwd(), path.as_posix()
    return path.resolve().parent, path.name


def _find_in_copy(options: argparse.Namespace) -> tuple[Path, str]:
    """Create or renew the learner's copy; return the folder and the requested notebook."""
    folder = folder_of(options)
    with bad_usage(FileNotFoundError):
        found = lessons.find(options.lesson or lessons.INDEX, folder)
    lay_out(folder)
    copy = next((copy for copy in found if copy.language == options.reader), found[0])
    return folder.resolve(), f"{copy}.ipynb"


def _settings(folder: Path, language: str) -> dict[str, str]:
    """Write Jupyter's defaults for one server into ``folder``; return environment variables with the paths."""
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
    """Return whether a browser window can open here."""
    named = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or bool(named)
