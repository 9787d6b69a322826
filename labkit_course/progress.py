"""Keeps which exercises the learner has answered, and which at the first try, in a small JSON file of theirs.

It is ``~/.labkit/progress.json``, or the file that the environment variable ``LABKIT_PROGRESS`` names
("off" keeps nothing). It is written whole or not at all, by one process at a time. What else stands in it stays; a
file that cannot be understood is moved aside, never overwritten. A note that cannot be written now is written
with the next one, or when the progress is shown; nothing that goes wrong here is an error in the learner's cell.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from labkit.base.files import real_file, reason, write_whole
from labkit.base.language import say, wrong

_PATIENCE = 5  # seconds for another process to write its note; it takes milliseconds

# What shows progress (see .board): its ``refresh()`` is called when an exercise has been noted.
watchers: WeakSet[Any] = WeakSet()

# The lists that the file keeps: exercises that are answered, those whose first answer was wrong; and of lesson 09 what
# a repair has reached and which hints were taken (see content/repairs/score.py). What stands in a list stays there.
DONE, MISSED, REACHED, HINTED = LISTS = "done", "missed", "reached", "hinted"
# What was noted in this process and the file does not know yet: (list, what is noted).
_unwritten: set[tuple[str, str]] = set()
# Why, and where a file that could not be understood has gone.
_error: Exception | None = None
_aside: Path | None = None


def file() -> Path | None:
    """The file that keeps progress; None if there is none. OSError if nobody knows where home is."""
    named = os.environ.get("LABKIT_PROGRESS")
    if named == "off":
        return None
    try:
        return Path(named).expanduser() if named else Path.home() / ".labkit" / "progress.json"
    except RuntimeError:  # no HOME, and no such user
        raise wrong(
            OSError,
            en="the home folder is not known: name a file in LABKIT_PROGRESS",
            zh="不知道主目录在哪里：请用 LABKIT_PROGRESS 指定一个文件",
        ) from None


def done() -> set[str]:
    """The ids of the exercises answered so far; of a file that is missing or cannot be read, none."""
    return listed(DONE)


def at_first_try() -> set[str]:
    """Those of them whose first answer was right."""
    return listed(DONE) - listed(MISSED)


def note(exercise: str, right: bool = True) -> None:
    """Note an answer to ``exercise``; a wrong one counts only if it is the first. What fails costs the note alone."""
    if right or exercise not in done():
        add(DONE if right else MISSED, exercise)


def add(name: str, entry: str) -> None:
    """Add ``entry`` to the list ``name`` of the file. What fails costs the note alone."""
    if kept():
        _unwritten.add((name, entry))
    write()
    tell()


def kept() -> bool:
    """True unless LABKIT_PROGRESS is off."""
    return os.environ.get("LABKIT_PROGRESS") != "off"


def tell() -> None:
    """Let what shows progress show it as it is now."""
    for watcher in list(watchers):
        with suppress(Exception):  # a widget whose page is gone
            watcher.refresh()


def write() -> None:
    """Write what is noted and not written yet; :func:`trouble` says what became of it."""
    global _error, _aside
    if not _unwritten:
        return
    try:
        path, noted = file(), set(_unwritten)
        if path is not None:
            _aside = _add(real_file(path), noted) or _aside
        _unwritten.difference_update(noted)  # of this moment: another thread may have noted more
    except Exception as error:  # of any kind: the answer was right, and the learner's cell is not about files
        _error = error.with_traceback(None)


def trouble() -> str:
    """Says in one sentence why progress is not saved; "" if all is well."""
    if _unwritten and _error:
        why = reason(_error) if isinstance(_error, OSError) else f"{type(_error).__name__}: {_error}"
        return say(en=f"Progress could not be saved ({why}).", zh=f"进度没能保存（{why}）。")
    if _aside is not None and _aside.exists():
        return say(
            en=f"The progress file could not be understood; it is kept as {_aside.name}.",
            zh=f"进度文件无法识别，已另存为 {_aside.name}。",
        )
    return ""


def listed(name: str) -> set[str]:
    """The entries of the list ``name``, in the file or noted since; none of a file that cannot be read."""
    unwritten = {exercise for listed, exercise in _unwritten if listed == name}
    try:
        path = file()
        return unwritten | _kept(_load(real_file(path)), name) if path else set()
    except (OSError, _NotOurs):
        return unwritten


def _add(path: Path, noted: set[tuple[str, str]]) -> Path | None:
    """Write the notes; gives where a file that could not be understood was moved, if there was one."""
    from filelock import FileLock  # not before somebody answers

    path.parent.mkdir(parents=True, exist_ok=True)
    # What is read and written back must not change in between: other notebooks have their answers, too.
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=_PATIENCE):
        try:
            aside, text = None, _with(_load(path), noted)
        except _NotOurs:
            aside, text = _set_aside(path), _with({}, noted)
        if text:
            write_whole(path, text)
    return aside


def _with(known: dict[str, object], noted: set[tuple[str, str]]) -> str:
    """The file's new text; "" if it says so already."""
    kept = {(name, exercise) for name in LISTS for exercise in _kept(known, name)}
    if noted <= kept:
        return ""
    for name in {listed for listed, _ in noted}:
        known[name] = sorted(exercise for listed, exercise in kept | noted if listed == name)
    try:
        text = json.dumps(known, indent=1, ensure_ascii=False)
    except RecursionError as error:  # read by C, written by Python, which does not go as deep
        raise _NotOurs from error
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair of surrogates, which only an escape can say
        text = json.dumps(known, indent=1)
    return text


class _NotOurs(Exception):
    """The file is none that progress is kept in."""


def _load(path: Path) -> dict[str, object]:
    """The contents of the file, {} if there is none."""
    try:
        found = json.loads(path.read_text("utf-8-sig"))  # an editor may have put its mark at the beginning
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise _NotOurs from error
    if not isinstance(found, dict):
        raise _NotOurs
    return found


def _kept(found: dict[str, object], name: str) -> set[str]:
    listed = found.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise _NotOurs
    return set(listed)


def _set_aside(path: Path) -> Path:
    """Move a file that cannot be understood to a free name beside it; gives that name."""
    count = 1
    while (free := path.with_name(f"{path.stem}.unreadable-{count}{path.suffix}")).exists():
        count += 1
    path.replace(free)
    return free
