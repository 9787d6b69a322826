"""Run a lesson for several numbers of GPUs: executed notebooks, and one report that compares them.

Exit code 0 if every run went through, 1 if one failed (it is kept and named), 2 for bad usage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..base.language import LANGUAGES, get_language, say, using
from ..base.numbers import plural
from .usage import UsageError, at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "lesson",
        metavar="LESSON",
        help=say(
            en="such as 03_split, or a path to a notebook, which keeps its own language",
            zh="例如 03_split；也可以是笔记本的路径，这时沿用笔记本自己的语言",
        ),
    )
    parser.add_argument(
        "--gpus",
        type=at_least(0),
        nargs="+",
        required=True,
        metavar="N",
        help=say(en="the numbers of GPUs", zh="各次运行的 GPU 数"),
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=say(en="default: out/LESSON-LANG", zh="默认 out/课程-语言"),
    )
    parser.add_argument(
        "-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help=say(en="another parameter of the notebook; can be repeated", zh="笔记本的其他参数；可以多次给出"),
    )  # fmt: skip
    parser.add_argument(
        "--force", action="store_true", help=say(en="overwrite what stands there", zh="覆盖已有的文件")
    )


def run(options: argparse.Namespace) -> int:
    from ..runs import sweep as sweeps  # heavy, as report is: torch and nbformat
    from ..runs.report import report

    checkout = Path(__file__).parents[2] / "notebooks"
    try:
        lesson = sweeps.find(options.lesson, get_language(), (Path("notebooks"), checkout))
        # A notebook given by its path keeps its own language unless another one is asked for.
        language = options.lang or (None if options.lesson.endswith(".ipynb") else get_language())
        folder = options.out or Path("out") / f"{lesson.stem}{f'-{language}' if language else ''}"
        plan = sweeps.plan(lesson, options.gpus, folder, dict(options.parameters), language)
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from None
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out must be a folder, {folder} is a file")
    existing = plan.existing()
    if existing and not options.force:
        more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise UsageError(
            f"{existing[0]}{more} exists already; --force overwrites, --out DIR writes elsewhere"
        )
    runs, stopped = [], False
    try:
        for count in plan.gpus:
            print(f"{plan.lesson.stem} on {plural(count, 'GPU')}", file=sys.stderr, flush=True)
            runs.append(sweeps.execute(plan, count))
    except KeyboardInterrupt:
        stopped = True
    plan.folder.mkdir(parents=True, exist_ok=True)
    language = plan.parameters.get("language")
    with using(language if language in LANGUAGES else get_language()):
        plan.report.write_text(report(plan, runs), "utf-8")
    for done in runs:
        result = f"FAILED, {done.error}" if done.error else "ok"
        print(f"{plural(done.gpus, 'GPU')}: {result}  {done.seconds:.1f} s  {done.notebook}")
    print(f"report: {plan.report}")
    return 130 if stopped else int(any(done.error for done in runs))
