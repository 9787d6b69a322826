"""Make the one file that is handed in, and say what is in it.

Exit code 0 if it was made, 1 if nothing is answered in it (``--anyway`` makes it all the same), 2 for bad usage.
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from ..base.files import reason
from ..base.language import say
from .console import tell
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
    answers = found.answers
    tell(
        en=f"Assignment {found.assignment}, edition of {found.student}",
        zh=f"作业 {found.assignment}，{found.student} 的版本",
    )
    if answers is None:
        tell(
            en="  The notebook has lost its metadata: it cannot be said here which questions are answered. "
            "The answers are found all the same when it is graded.",
            zh="  笔记本丢失了元数据，这里无法判断答了哪些题。批改时照样能找到答案。",
        )
    else:
        for question, source in answers.answers.items():
            trouble = found.troubles.get(question)
            if source is None:
                state = say(en="NOT ANSWERED", zh="未作答")
            elif trouble:
                state = say(
                    en=f"answered, but it is not Python: {trouble}", zh=f"已作答，但有语法错误：{trouble}"
                )
            else:
                lines = len(source.splitlines())
                state = say(en=f"answered, {lines} lines", zh=f"已作答，{lines} 行")
            print(f"  {question:<14} {state}")
        for note in answers.notes:
            print(f"  ! {note}")
        if len(answers.unanswered) == len(answers.answers) and not options.anyway:
            tell(
                en="Nothing is answered in it, so no file was made. Is it the right notebook, and saved? "
                "--anyway makes one.",
                zh="一道题也没有答，所以没有生成文件。笔记本选对了吗？保存了吗？加 --anyway 可以照样生成。",
                file=sys.stderr,
            )
            return 1
    try:
        options.to.mkdir(parents=True, exist_ok=True)
        path = write(found, options.to, datetime.now())
    except OSError as error:
        raise UsageError(
            en=f"{options.to} cannot be written: {reason(error)}",
            zh=f"无法写入 {options.to}：{reason(error)}",
        ) from None
    size = max(1, round(path.stat().st_size / 1024))
    tell(
        en=f"Hand in this file: {path} ({size} KB). It holds the text and code of your notebook, your student id "
        "and this computer's time; no outputs, and nothing else.",
        zh=f"请提交这个文件：{path}（{size} KB）。里面有笔记本的文字和代码、你的学号、这台电脑的时间；"
        "没有输出，也没有别的内容。",
    )
    return 0
