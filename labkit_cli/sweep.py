"""Run a lesson for several numbers of GPUs, and write executed notebooks and a report that compares them.

Exit code 0: all runs succeeded. 1: a run failed (its notebook is kept). 2: bad usage. 74: a file cannot be written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.base.extras import need
from labkit.base.files import reason, write_whole
from labkit.base.language import get_language, named_language, using
from labkit.base.units import duration
from labkit_course.notebooks.copies import find, source

from .usage import CannotWrite, UsageError, announce_loading, at_least, bad_usage
from .wording import Wording

if TYPE_CHECKING:
    from labkit_course.notebooks.sweep import Run, Sweep


WORDING = Wording(
    "sweep",
    gpus={"type": at_least(0), "nargs": "+", "required": True},
    out={"type": Path},
    p={"nargs": 2, "metavar": ("NAME", "VALUE"), "action": "append", "default": [], "dest": "parameters"},
    cell_timeout={"type": at_least(0), "default": 600},
)


def run(options: argparse.Namespace) -> int:
    need("papermill", "nbformat", "nbclient", "nbconvert")
    announce_loading()
    from labkit_course.notebooks import sweep as sweeps  # slow: imports torch and nbformat

    with bad_usage(FileNotFoundError, ValueError):
        lesson, language = _find_lesson(options.lesson, options.lang)
        folder = options.out or Path("out") / f"{lesson.stem}{f'-{language}' if language else ''}"
        plan = sweeps.plan(
            lesson, options.gpus, folder, dict(options.parameters), language, options.cell_timeout
        )
    if folder.exists() and not folder.is_dir():
        en, zh = f"--out must be a folder, but {folder} is a file", f"--out 必须是文件夹，{folder} 是文件"
        raise UsageError(en=en, zh=zh)
    if not options.force and (existing := plan.existing_files()):
        raise UsageError(
            en=f"{existing[0]} exists: --force overwrites, --out DIR writes elsewhere",
            zh=f"{existing[0]} 已经存在：--force 覆盖，--out DIR 写到别处",
        )
    try:
        runs = _execute(plan)
    except BrokenPipeError:  # main handles it
        raise
    except OSError as error:
        raise CannotWrite(f"{error.filename or folder}: {reason(error)}") from None
    for done in runs:
        result = WORDING["failed"](error=done.error) if done.error else WORDING["went-through"]
        time = duration(done.seconds)
        WORDING.tell("run", gpus=done.gpus, result=result, time=time, notebook=done.notebook)
    WORDING.tell("report", path=plan.report)
    return int(any(done.error for done in runs))


def _find_lesson(name: str, language: str | None) -> tuple[Path, str | None]:
    """Return the path of a lesson, and the language to run it in: None for that of a notebook given as a path."""
    if name.endswith(".ipynb"):
        if not Path(name).is_file():
            raise UsageError(en=f"no such notebook: {name}", zh=f"没有笔记本 {name}")
        return Path(name), language
    found = find(name, source())
    copy = next((copy for copy in found if copy.language == (language or get_language())), found[0])
    return copy.file, copy.language


def _execute(plan: Sweep) -> list[Run]:
    """Execute the runs, and write the report after each."""
    from labkit_course.notebooks import sweep as sweeps
    from labkit_course.notebooks.report import report

    shown = named_language(plan.parameters.get("language")) or get_language()
    runs: list[Run] = []

    def write_report() -> None:
        with using(shown):
            write_whole(plan.report, report(plan, runs))

    plan.folder.mkdir(parents=True, exist_ok=True)
    write_report()  # fails now, not after minutes, if the folder cannot be written
    for count in plan.gpus:
        WORDING.tell("new-run", file=sys.stderr, flush=True, lesson=plan.lesson.stem, gpus=count)
        runs.append(sweeps.execute(plan, count))
        write_report()
    return runs
