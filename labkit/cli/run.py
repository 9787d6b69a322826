"""Run a Python script on simulated GPUs, unmodified.

The script sees what it would see on its own: its ``__main__``, its arguments, its folder first on the
path. Its exit code and its traceback are kept.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import runpy
import sys
import traceback
from pathlib import Path

from ..base.language import say
from ..launch import rank
from .usage import UsageError, at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = say(
        en="labkit run [options] (SCRIPT | -m MODULE) [ARGS ...]",
        zh="labkit run [选项] (SCRIPT | -m MODULE) [ARGS ...]",
    )
    parser.add_argument(
        "--gpus",
        type=at_least(1),
        default=8,
        metavar="N",
        help=say(en="how many GPUs (default 8)", zh="GPU 数（默认 8）"),
    )
    parser.add_argument(
        "--memory",
        default="16 GiB",
        metavar="SIZE",
        help=say(en='of each GPU (default "16 GiB")', zh='每块 GPU 的显存（默认 "16 GiB"）'),
    )
    parser.add_argument(
        "--order",
        default=None,
        help=say(
            en='replicas: "threads" (race) or numbers such as 2,0,1',
            zh='副本的顺序："threads"（任其竞争），或编号如 2,0,1',
        ),
    )
    parser.add_argument(
        "--backing",
        default="cpu",
        help=say(
            en='where values are kept: "cpu" or a real GPU, "cuda:0"',
            zh='数值存放在哪里："cpu"，或一块真 GPU，如 "cuda:0"',
        ),
    )
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE [ARGS ...]",
        help=say(en="a module", zh="运行一个模块"),
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGS ...]",
        help=say(en="the script and its own arguments", zh="脚本和它自己的参数"),
    )


def run(options: argparse.Namespace) -> int:
    as_module = options.module is not None
    program = options.module if as_module else options.program
    if as_module and not program:
        raise UsageError(
            say(
                en="-m needs the name of a module: labkit run --gpus 2 -m pytest FILE",
                zh="-m 后面要写模块名：labkit run --gpus 2 -m pytest FILE",
            )
        )
    if not program:
        raise UsageError(
            say(
                en="no script given: labkit run --gpus 8 train.py",
                zh="没有给出脚本：labkit run --gpus 8 train.py",
            )
        )
    if not as_module and not Path(program[0]).is_file():
        raise UsageError(say(en=f"no such script: {program[0]}", zh=f"没有脚本 {program[0]}"))
    order = options.order
    if order not in (None, "threads"):
        try:
            order = [int(part) for part in order.split(",")]
        except ValueError:
            raise UsageError(
                say(
                    en=f'--order must be "threads" or GPU numbers such as 2,0,1, got {order!r}',
                    zh=f'--order 必须是 "threads" 或 GPU 编号如 2,0,1，现在是 {order!r}',
                )
            ) from None

    from ..machine import simulate, use_gpus

    gpus = options.gpus
    if options.backing == "cpu":  # else it says which of the real GPUs are there
        gpus = _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        machine = (
            simulate(gpus, memory=options.memory, backing=options.backing, order=order)
            if gpus
            else use_gpus(0)
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    with machine:
        return _run_as_main(program, as_module)


def _visible(gpus: int, listed: str | None) -> int:
    """How many of ``gpus`` GPUs CUDA_VISIBLE_DEVICES leaves to see: those before the first that is none."""
    if listed is None:
        return gpus
    visible = []
    for part in listed.split(","):
        if not part.strip().isdecimal() or int(part) >= gpus:
            break
        visible.append(int(part))
    if len(set(visible)) < len(visible):
        visible = []  # naming one twice hides all of them, as with CUDA
    if len(visible) < gpus:
        print(
            say(
                en=f"CUDA_VISIBLE_DEVICES={listed}: {len(visible)} of {gpus} GPUs visible",
                zh=f"CUDA_VISIBLE_DEVICES={listed}：{gpus} 块 GPU 中可见 {len(visible)} 块",
            ),
            file=sys.stderr,
        )
    return len(visible)


def _run_as_main(argv: list[str], as_module: bool) -> int:
    before = sys.argv, list(sys.path), sys.modules["__main__"], sys.excepthook
    sys.argv = list(argv)
    # python SCRIPT puts the script's folder first on the path, python -m the current one.
    sys.path.insert(0, os.getcwd() if as_module else str(Path(argv[0]).resolve().parent))
    try:
        if not as_module:
            rank.run_as_main(argv[0])
        elif _is_missing(argv[0]):
            raise UsageError(say(en=f"no such module: {argv[0]}", zh=f"没有模块 {argv[0]}"))
        else:
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except UsageError:
        raise
    except SystemExit as stop:
        return _exit_code(stop.code)
    except KeyboardInterrupt:
        _show_exception()
        return 130
    except BaseException:
        _show_exception()
        return 1
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"], sys.excepthook = before
    return 0


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError as error:  # its package is missing (or the package's own import fails)
        return error.name is not None and f"{module}.".startswith(f"{error.name}.")
    except ValueError:  # a relative name
        return True


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)  # sys.exit("text") prints the text and exits with 1
    return 1


def _show_exception() -> None:
    """Report the exception as the real machine would: without labkit's own frames."""
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(*sys.exc_info())  # the script has its own way
        return
    report = traceback.TracebackException(*sys.exc_info())
    _without_our_frames(report)
    # What failed in a replica stands as text in the message of the error that is raised for it.
    print(_OUR_FRAME.sub("", "".join(report.format())), end="", file=sys.stderr)


def _without_our_frames(report: traceback.TracebackException | None) -> None:
    if report is None:
        return
    kept = [frame for frame in report.stack if not _ours(frame.filename)]
    report.stack = traceback.StackSummary.from_list(kept)
    _without_our_frames(report.__cause__)
    _without_our_frames(report.__context__)
    for inner in getattr(report, "exceptions", None) or ():
        _without_our_frames(inner)


_MACHINE = str(Path(__file__).parents[1] / "machine") + os.sep
_OURS = (__file__, rank.__file__, runpy.__file__, "<frozen runpy", _MACHINE)
_OUR_FRAME = re.compile(rf'^  File "{re.escape(_MACHINE)}.*\n(?:    .*\n)*', re.MULTILINE)


def _ours(filename: str) -> bool:
    return filename.startswith(_OURS)
