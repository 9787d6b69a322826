"""The command line: a command for each entry of COMMANDS.

Each command is a module of this folder with ``add_arguments(parser)`` and ``run(options) -> exit code``.
Bad usage is one line on stderr and exit code 2, before anything is written or run; a crash of labkit itself is 70, so
that 1 is always what a command has found. ``--lang`` may stand before the
command or among its options; what a script is given is the script's.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from argparse import REMAINDER, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from .. import __version__
from ..base.arguments import in_the_language_in_use
from ..base.extras import MissingPackage, explained
from ..base.language import VARIABLE, get_language, named_language, say, using
from . import console
from .usage import Lenient, Parser, UsageError, add_language

# Each command and what it is for. Only the module of the one that is asked for is imported.
COMMANDS = {
    "run": lambda: say(
        en="run a script on simulated GPUs, unmodified", zh="在模拟 GPU 上运行脚本，脚本一字不改"
    ),
    "torchrun": lambda: say(
        en="run a torch.distributed script on simulated GPUs, unmodified",
        zh="在模拟 GPU 上运行 torch.distributed 脚本，脚本一字不改",
    ),
    "plan": lambda: say(
        en="say what a training run will need, and how fast it will be",
        zh="训练之前先算好：放不放得下，有多快",
    ),
    "sweep": lambda: say(
        en="run a lesson for several numbers of GPUs and compare",
        zh="用不同的 GPU 数各运行一遍课程，并作对比",
    ),
    "diagnose": lambda: say(
        en="check whether your own model would survive DataParallel",
        zh="检查你自己的模型能不能用 DataParallel",
    ),
    "check": lambda: say(
        en="run a torch.distributed script once, and say on one page what is wrong, held and waited for",
        zh="把 torch.distributed 脚本运行一遍，一页列出问题、显存和等待",
    ),
    "explain": lambda: say(
        en="say why ranks hang, from the dumps of PyTorch's Flight Recorder",
        zh="根据 PyTorch Flight Recorder 的转储，说明各 rank 为什么卡住",
    ),
    "lab": lambda: say(
        en="open the course in JupyterLab, in your own copy of it",
        zh="在 JupyterLab 中打开课程（你自己的副本）",
    ),
    "lessons": lambda: say(
        en="list the lessons, copy them, start one afresh", zh="列出课程、复制课程、让一课重新开始"
    ),
    "assignment": lambda: say(
        en="hand out assignments to a class, and export its marks", zh="给班级发放作业，导出成绩"
    ),
    "grade": lambda: say(
        en="grade what a class handed in, or one notebook, behind a wall",
        zh="在隔离环境中批改全班的作业，或单个笔记本",
    ),
    "submit": lambda: say(en="make the one file that you hand in", zh="生成要提交的那个文件"),
    "doctor": lambda: say(
        en="say what this computer has and what would be simulated", zh="列出这台电脑有什么、哪些会被模拟"
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    alone = argv is None  # the process is this command's own
    argv = sys.argv[1:] if argv is None else argv
    if alone:
        if "_ARGCOMPLETE" in os.environ:
            _complete()
        console.forgive()
        console.show_progress()
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        get_language()
    for complaint in complaints:
        print(f"labkit: {complaint.message}", file=sys.stderr)
    command, language = _asked(argv)
    reader = language or get_language()
    encoding = console.without_chinese() if reader == "zh" else None
    if encoding:
        print(f"labkit: the encoding of this console, {encoding}, has no Chinese: English", file=sys.stderr)
        language = "en"
    try:
        with _speaking(language):
            with in_the_language_in_use():
                argv, rest = _parted(argv, command)
                options = _parser(command).parse_args(argv, Namespace(alone=alone, reader=reader, rest=rest))
            code: int = options.run(options)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"labkit: {' '.join(str(error).split())}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has gone, as ``| head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        missing = explained(error) if isinstance(error, ModuleNotFoundError) else None
        if isinstance(missing, MissingPackage):
            print(f"labkit: {missing}", file=sys.stderr)
            return 69  # EX_UNAVAILABLE of sysexits.h
        traceback.print_exc()
        fault = say(
            en="this is a fault of labkit's own, not of yours", zh="这是 labkit 自身的错误，不是你的问题"
        )
        print(f"labkit: {fault}", file=sys.stderr)
        return 70  # EX_SOFTWARE of sysexits.h


def _complete() -> None:
    """Answer a shell that asks which words could come next, and end; without argcomplete there is no answer."""
    with suppress(ImportError):
        from argcomplete import autocomplete

        command, _ = _asked(os.environ["COMP_LINE"].split()[1:])
        autocomplete(_parser(command))


def _parser(command: str | None) -> Parser:
    parser = Parser(
        prog="labkit",
        description=say(
            en="Learn, debug and teach multi-GPU data parallelism on any machine.",
            zh="在任何电脑上学习、调试、讲授多 GPU 数据并行。",
        ),
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"labkit {__version__}",
        help=say(en="show the version and exit", zh="显示版本号并退出"),
    )
    add_language(parser, default=None)
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, purpose in COMMANDS.items():
        made = commands.add_parser(name, help=purpose())
        if name == command:
            found = import_module(f"{__name__}.{name}")
            made.description = purpose()
            found.add_arguments(made)
            add_language(made)
            made.set_defaults(run=found.run)
    return parser


def _parted(argv: list[str], command: str | None) -> tuple[list[str], list[str]]:
    """The command's own arguments, and those that it hands on to another program."""
    found = import_module(f"{__name__}.{command}") if command in COMMANDS else None
    parted: Callable[[list[str]], tuple[list[str], list[str]]] | None = getattr(found, "parted", None)
    return parted(argv) if parted else (argv, [])


def _asked(argv: list[str]) -> tuple[str | None, str | None]:
    """The command and the language that are asked for. Mistakes elsewhere on the line do not matter here, so that the
    complaints about them are in that language, too."""
    found = Namespace(lang=None, command=None, rest=[])
    parser = Lenient()
    parser.add_argument("--lang")
    parser.add_argument("command", nargs="?")
    parser.add_argument("rest", nargs=REMAINDER)
    with suppress(UsageError):
        parser.parse_known_args(argv, found)
    parser = Lenient()
    parser.add_argument("--lang", default=found.lang)
    if found.command in COMMANDS:
        with suppress(ModuleNotFoundError):  # main says of what is missing
            import_module(f"{__name__}.{found.command}").add_arguments(parser)
    try:
        parser.parse_known_args(found.rest, found)
    except UsageError:  # the command has no such action
        parser = Lenient()
        parser.add_argument("--lang", default=found.lang)
        with suppress(UsageError):
            parser.parse_known_args(found.rest, found)
    return found.command, named_language(found.lang)


@contextmanager
def _speaking(language: str | None) -> Iterator[None]:
    """Show everything in ``language`` (None: no change) inside, also in the processes that are started there."""
    if language is None:
        yield
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = language
    try:
        with using(language):
            yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
