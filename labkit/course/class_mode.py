"""Class mode: no solution of a lesson is shown before the teacher gives the class a word.

A file ``labkit-class.json`` in the folder of the lessons, or above it, or where ``LABKIT_CLASS`` names it, closes them.
The word opens them, not the time: a computer's clock is the student's. It is a curtain and no lock: whoever takes the
file away, or reads the source, sees what is behind it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path

from ..base.language import say

FILE, VARIABLE = "labkit-class.json", "LABKIT_CLASS"
_ROUNDS = 100_000

# The locks that have been opened in this process.
_opened: set[str] = set()


def lock(word: str, deadline: str) -> str:
    """The text of a file that closes solutions until ``word`` is known; ``deadline`` is what students read."""
    return json.dumps({"labkit class mode": 1, "deadline": deadline, "lock": _lock(word, deadline)}) + "\n"


def closed() -> str:
    """Says in a sentence for the student why solutions are closed; "" if they are open."""
    file = _file()
    if file is None:
        return ""
    deadline, wanted = _told(file)
    if wanted and wanted in _opened:
        return ""
    when = say(en=f" (deadline: {deadline})", zh=f"（截止时间：{deadline}）") if deadline else ""
    return say(
        en=f"The solution is closed for this class{when}. Your teacher will give you a word: "
        '`labkit.course.open_solutions("the word")`.',
        zh=f'这个班的答案还没有开放{when}。老师会给出口令，届时运行 `labkit.course.open_solutions("口令")`。',
    )


def open_solutions(word: str) -> None:
    """Show solutions from now on, in this process, if ``word`` is what the teacher has given; else ValueError."""
    file = _file()
    if file is None:
        return
    deadline, wanted = _told(file)
    if not hmac.compare_digest(_lock(str(word), deadline), wanted):
        raise ValueError(
            say(
                en=f"word must be the one that your teacher gave to the class, got {word!r}",
                zh=f"word 必须是老师告诉全班的口令，现在是 {word!r}",
            )
        )
    _opened.add(wanted)


def _file() -> Path | None:
    if named := os.environ.get(VARIABLE):
        return Path(named)
    here = Path.cwd()
    return next((file for folder in (here, *here.parents) if (file := folder / FILE).is_file()), None)


def _told(file: Path) -> tuple[str, str]:
    """(deadline, lock) of the file; of one that cannot be read, a lock that no word opens."""
    try:
        told = json.loads(file.read_text("utf-8"))
        return str(told["deadline"]), str(told["lock"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def _lock(word: str, salt: str) -> str:
    word = word.strip().casefold()
    return hashlib.pbkdf2_hmac("sha256", word.encode(), salt.encode(), _ROUNDS).hex()
