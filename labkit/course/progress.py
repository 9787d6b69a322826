"""Which exercises the learner has answered: a small JSON file that is theirs.

It is ``~/.labkit/progress.json``, or the file that the environment variable ``LABKIT_PROGRESS`` names
("off" keeps nothing). It is written whole or not at all, and a file that cannot be read is kept beside
the new one under the ending ``.unreadable``.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from ..language import say


def file() -> Path | None:
    """Where progress is kept; None if it is not."""
    named = os.environ.get("LABKIT_PROGRESS")
    if named == "off":
        return None
    return Path(named) if named else Path.home() / ".labkit" / "progress.json"


def done() -> set[str]:
    """The ids of the exercises answered so far."""
    path = file()
    if path is None or not path.exists():
        return set()
    try:
        return set(json.loads(path.read_text("utf-8"))["done"])
    except (ValueError, KeyError, TypeError):
        path.replace(path.with_suffix(".unreadable"))
        return set()


def note(exercise: str) -> None:
    """Note that ``exercise`` was answered. A folder that cannot be written costs the note, not the lesson."""
    path = file()
    if path is None:
        return
    try:
        known = done()
        if exercise in known:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".new", delete=False, encoding="utf-8"
        ) as new:
            json.dump({"done": sorted(known | {exercise})}, new, indent=1)
        os.replace(new.name, path)
    except OSError:
        return


class Progress:
    """What has been answered, lesson by lesson."""

    def __init__(self) -> None:
        from . import exercises  # noqa: F401
        from .answers import EXERCISES

        self._done = done()
        self._all = sorted(EXERCISES)

    def __repr__(self) -> str:
        lines = []
        for lesson in sorted({name.partition(".")[0] for name in self._all}):
            names = [name for name in self._all if name.startswith(f"{lesson}.")]
            marks = " ".join("✓" if name in self._done else "·" for name in names)
            lines.append(f"{lesson}  {marks}")
        where = file()
        kept = say(en=f"kept in {where}", zh=f"保存在 {where}") if where else say(en="not kept", zh="不保存")
        return "\n".join([*lines, kept])
