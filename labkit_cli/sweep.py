"""Run a lesson for several numbers of GPUs, and write executed notebooks and a report that compares them.

The same command continues a stopped sweep, and repeats failed runs. Exit code 0: all runs succeeded. 1: a run failed
(its notebook is kept). 2: bad usage. 74: a file cannot be written. 130 or 143: interrupted or terminated.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.base.extras import need
from labkit.base.files import reason, write_whole
from labkit.base.language import get_language, named_language, using
from labkit.base.units import duration
from labkit_course.notebooks.copies import source

from .usage import UsageError, announce_loading, at_least, bad_usage
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
_CANNOT_WRITE = 74  # sysexits' EX_IOERR


def run(options: argparse.Namespace) -> int:
    need("papermill", "nbformat", "nbclient", "nbconvert")
    announce_loading()
    from labkit_course.notebooks import sweep as sweeps  # slow: imports torch and nbformat

    with bad_usage(FileNotFoundError, ValueError):
        lesson = sweeps.find(options.lesson, get_language(), (Path("notebooks"), source()))
        # A notebook given as a path keeps its language, unless --lang names another.
        language = options.lang or (None if options.lesson.endswith(".ipynb") else get_language())
        folder = options.out or Path("out") / f"{lesson.stem}{f'-{language}' if language else ''}"
        plan = sweeps.plan(
            lesson, options.gpus, folder, dict(options.parameters), language, options.cell_timeout
        )
    if folder.exists() and not folder.is_dir():
        en, zh = f"--out must be a folder, but {folder} is a file", f"--out 必须是文件夹，{folder} 是文件"
        raise UsageError(en=en, zh=zh)
    try:
        if not options.force and (occupied := plan.find_occupied_files()):
            more = len(occupied) - 1
            raise UsageError(
                en=f"{occupied[0]}{f', and {more} more' if more else ''}; "
                "--force overwrites, --out DIR writes elsewhere",
                zh=f"{occupied[0]}{f'，另有 {more} 个' if more else ''}；--force 覆盖，--out DIR 写到别处",
            )
        with _termination_as_interrupt():
            return _run(plan, again=options.force)
    except BrokenPipeError:  # main handles it
        raise
    except OSError as error:
        WORDING.tell("trouble", file=sys.stderr, path=error.filename or folder, why=reason(error))
        return _CANNOT_WRITE


def _run(plan: Sweep, again: bool) -> int:
    """Execute the missing runs (``again``: all), and write the report after each."""
    from labkit_course.notebooks import sweep as sweeps
    from labkit_course.notebooks.report import report

    language = plan.parameters.get("language")
    shown = named_language(language) or get_language()
    runs: list[Run] = []
    stopped = 0

    def write_report() -> None:
        with using(shown):
            write_whole(plan.report, report(plan, runs))

    plan.folder.mkdir(parents=True, exist_ok=True)
    write_report()  # fails now, not after minutes, if the folder cannot be written
    try:
        for count in plan.gpus:
            made = None if again else sweeps.earlier(plan, count)
            words = "earlier-run" if made else "new-run"
            WORDING.tell(words, file=sys.stderr, flush=True, lesson=plan.lesson.stem, gpus=count)
            runs.append(made or sweeps.execute(plan, count))
            write_report()
    except KeyboardInterrupt as interrupt:
        stopped = 143 if isinstance(interrupt, _Terminated) else 130
    for done in runs:
        result = WORDING["failed"](error=done.error) if done.error else WORDING["went-through"]
        time = duration(done.seconds)
        WORDING.tell("run", gpus=done.gpus, result=result, time=time, notebook=done.notebook)
    WORDING.tell("report", path=plan.report)
    if stopped:
        WORDING.tell("stopped", file=sys.stderr, made=len(runs), asked=len(plan.gpus))
    return stopped or int(any(done.error for done in runs))


class _Terminated(KeyboardInterrupt):
    """SIGTERM as an interrupt, which also ends the kernel."""


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # only the main thread may set signal handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
