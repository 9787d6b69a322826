"""Open a lesson in JupyterLab, with or without a screen.

Serves the current folder until it is interrupted; JupyterLab prints the URL.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ..base.language import say
from .usage import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "labkit lab NOTEBOOK [ARGS ...]"
    parser.add_argument(
        "notebook",
        metavar="NOTEBOOK",
        help=say(en="such as notebooks/en/00_start.ipynb", zh="例如 notebooks/zh/00_start.ipynb"),
    )
    parser.add_argument(
        "extra",
        nargs=argparse.REMAINDER,
        metavar="ARGS ...",
        help=say(en="JupyterLab's own: --port 9999", zh="JupyterLab 自己的参数，如 --port 9999"),
    )


def run(options: argparse.Namespace) -> int:
    if not Path(options.notebook).is_file():
        raise UsageError(
            say(
                en=f"no such notebook: {options.notebook!r}; the lessons are in notebooks/en and notebooks/zh",
                zh=f"没有笔记本 {options.notebook!r}；课程在 notebooks/zh 和 notebooks/en 里",
            )
        )
    from jupyterlab.labapp import LabApp  # heavy: the server

    command = [f"--LabApp.default_url=/lab/tree/{options.notebook}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # a container's only user
    if not _has_screen():
        command.append("--no-browser")
    LabApp.launch_instance(command + options.extra)
    return 0


def _has_screen() -> bool:
    """Whether a browser window could open here."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
