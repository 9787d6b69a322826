"""``make lab``: JupyterLab, opened on a lesson, with or without a screen."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def arguments(notebook: str, extra: list[str], *, root: bool, screen: bool) -> list[str]:
    """The command line of JupyterLab that serves this repository opened on ``notebook``."""
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


def main(args: list[str]) -> int:
    """Serve until interrupted; JupyterLab prints the URL."""
    if not args or not Path(args[0]).is_file():
        named = args[0] if args else ""
        print(
            f"no such notebook: {named!r}; the lessons are in notebooks/en and notebooks/zh", file=sys.stderr
        )
        return 2
    from jupyterlab.labapp import LabApp

    root = hasattr(os, "geteuid") and os.geteuid() == 0
    LabApp.launch_instance(arguments(args[0], args[1:], root=root, screen=has_screen()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
