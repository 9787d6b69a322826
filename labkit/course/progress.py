"""Which exercises the learner has answered: a small JSON file that is theirs.

It is ``~/.labkit/progress.json``, or the file that the environment variable ``LABKIT_PROGRESS`` names
("off" keeps nothing). It is written whole or not at all. What else stands in it stays; a file that cannot
be understood is moved aside, never overwritten.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ..base.language import say

_lock = threading.Lock()


# What shows progress (see .board): its ``refresh()`` is called when an exercise has been noted.
watchers: WeakSet[Any] = WeakSet()

# What became of the last note, in one sentence; "" if all is well.
trouble: Callable[[], str] = lambda: ""  # noqa: E731 (said anew, in the language in use)


def file() -> Path | None:
    """Where progress is kept; None if it is not."""
    named = os.environ.get("LABKIT_PROGRESS")
    if named == "off":
        return None
    return Path(named).expanduser() if named else Path.home() / ".labkit" / "progress.json"


def done() -> set[str]:
    """The ids of the exercises answered so far; none if the file is missing or cannot be read."""
    path = file()
    try:
        return _answered(_load(path)) if path else set()
    except (OSError, ValueError):
        return set()


def note(exercise: str) -> None:
    """Note that ``exercise`` was answered. What goes wrong here costs the note, never the lesson."""
    global trouble
    path = file()
    if path is not None:
        try:
            with _lock:
                aside = _add(path, exercise)
            trouble = lambda: ""  # noqa: E731
            if aside is not None:
                trouble = lambda: say(  # noqa: E731
                    en=f"The progress file could not be understood; it is kept as {aside.name}.",
                    zh=f"进度文件无法识别，已另存为 {aside.name}。",
                )
        except OSError as error:
            reason = error.strerror or str(error)
            trouble = lambda: say(  # noqa: E731
                en=f"Progress could not be saved ({reason}).", zh=f"进度没能保存（{reason}）。"
            )
    for watcher in list(watchers):
        watcher.refresh()


def _add(path: Path, exercise: str) -> Path | None:
    """Write the note; gives where a file that could not be understood was moved, if there was one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = None
    try:
        known = _load(path)
        answered = _answered(known)
    except ValueError:
        aside = _set_aside(path)
        known, answered = {}, set()
    if exercise in answered:
        return aside
    known["done"] = sorted(answered | {exercise})
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
    try:
        with open(descriptor, "w", encoding="utf-8") as new:
            json.dump(known, new, indent=1, ensure_ascii=False)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return aside


def _load(path: Path) -> dict[str, object]:
    """What the file holds, {} if there is none; ValueError if it is not ours."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text("utf-8"))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _answered(found: dict[str, object]) -> set[str]:
    listed = found.get("done", [])
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError("'done' is not a list of names")
    return set(listed)


def _set_aside(path: Path) -> Path:
    """Move a file that cannot be understood to a free name beside it; gives that name."""
    count = 1
    while (free := path.with_name(f"{path.stem}.unreadable-{count}{path.suffix}")).exists():
        count += 1
    path.replace(free)
    return free
