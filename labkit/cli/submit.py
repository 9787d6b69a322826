"""Make the one file that is handed in, and say what is in it.

Exit code 0 if it was made, 1 if nothing is answered in it (``--anyway`` makes it all the same), 2 for bad usage.
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from ..base.files import reason
from .usage import UsageError, add_options
from .wording import Wording

WORDING = Wording("submit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WORDING, "options", notebook={"type": Path}, to={"type": Path, "default": Path()})


def run(options: argparse.Namespace) -> int:
    from ..classroom.intake.document import WrongFile
    from ..classroom.intake.handin import prepare, write
    from ..classroom.words import Problem

    try:
        found = prepare(options.notebook, options.id)
    except WrongFile as wrong:
        raise UsageError(en=f"{options.notebook}: {wrong}", zh=f"{options.notebook}：{wrong}") from None
    except Problem as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(
            en=f"{options.notebook} cannot be read: {reason(error)}",
            zh=f"无法读取 {options.notebook}：{reason(error)}",
        ) from None
    answers, claim = found.answers, found.claim
    WORDING.tell("edition", assignment=claim.assignment, student=claim.student)
    if answers is None:
        print(f"  {WORDING['no-metadata']}")
    else:
        for question, source in answers.answers.items():
            trouble = found.troubles.get(question)
            if source is None:
                state = WORDING["not-answered"]()
            elif trouble:
                state = WORDING["not-python"](trouble=trouble)
            else:
                state = WORDING["answered"](lines=len(source.splitlines()))
            print(f"  {question:<14} {state}")
        for note in answers.notes:
            print(f"  ! {note}")
        if len(answers.unanswered) == len(answers.answers) and not options.anyway:
            WORDING.tell("nothing-answered", file=sys.stderr)
            return 1
    try:
        options.to.mkdir(parents=True, exist_ok=True)
        path = write(found, options.to, datetime.now())
    except OSError as error:
        raise UsageError(
            en=f"{options.to} cannot be written: {reason(error)}",
            zh=f"无法写入 {options.to}：{reason(error)}",
        ) from None
    WORDING.tell("hand-in", path=path, size=max(1, round(path.stat().st_size / 1024)))
    return 0
