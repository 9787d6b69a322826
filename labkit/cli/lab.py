"""Open a lesson in JupyterLab, with or without a screen.

Serves the current folder until it is interrupted; JupyterLab prints the URL.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .usage import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "labkit lab NOTEBOOK [ARGS ...]"
    parser.add_argument("notebook", metavar="NOTEBOOK", help="such as notebooks/en/00_start.ipynb")
    parser.add_argument(
        "extra", nargs=argparse.REMAINDER, metavar="ARGS ...", help="JupyterLab's own: --port 9999"
    )


def run(options: argparse.Namespace) -> int:
    if not Path(options.notebook).is_file():
        raise UsageError(
            f"no such notebook: {options.notebook!r}; the lessons are in notebooks/en and notebooks/zh"
        )
    from jupyterlab.labapp import LabApp  # heavy: the server

    root = hasattr(os, "geteuid") and os.geteuid() == 0
    LabApp.launch_instance(command_line(options.notebook, options.extra, root=root, screen=has_screen()))
    return 0


def command_line(notebook: str, extra: list[str], *, root: bool, screen: bool) -> list[str]:
    """JupyterLab's arguments for serving the current folder opened on ``notebook``."""
    command = [f"--LabApp.default_url=/lab/tree/{notebook}"]
    if root:
        command.append("--allow-root")  # a container's only user
    if not screen and "--no-browser" not in extra:
        command.append("--no-browser")
    return command + extra


def has_screen() -> bool:
    """Whether a browser window could open here."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
