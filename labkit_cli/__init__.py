"""The command line: a command for each entry of COMMANDS.

Each command is a module of this folder with ``WORDING``, its texts and options as rows, and ``run(options) -> exit
code``; one that has more than the group ``options`` adds them by ``add_arguments(parser)``. Bad usage is one line on
stderr and exit code 2, before anything is written or run; a crash of labkit itself is 70, so that 1 is always what a
command has found. ``--lang`` may stand before the command or among its options; what a script is given is the script's.
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
from types import ModuleType

from labkit import __version__
from labkit.base.arguments import localize_argparse
from labkit.base.extras import MissingPackage, explain_missing
from labkit.base.language import VARIABLE, get_language, named_language, say, using

from . import console
from .usage import WORDING, Lenient, Parser, UsageError, add_language, add_options, environment

# The modules of this folder that are commands. Only that of the one that is asked for is imported.
COMMANDS = "run torchrun plan sweep diagnose check explain lab lessons assignment grade submit doctor".split()


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
            with localize_argparse():
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
        missing = explain_missing(error) if isinstance(error, ModuleNotFoundError) else None
        if isinstance(missing, MissingPackage):
            print(f"labkit: {missing}", file=sys.stderr)
            return 69  # EX_UNAVAILABLE of sysexits.h
        traceback.print_exc()
        en, zh = "this is a fault of labkit's own, not of yours", "这是 labkit 自身的错误，不是你的问题"
        print(f"labkit: {say(en=en, zh=zh)}", file=sys.stderr)
        return 70  # EX_SOFTWARE of sysexits.h


def _complete() -> None:
    """Answer a shell that asks which words could come next, and end; without argcomplete there is no answer."""
    with suppress(ImportError):
        from argcomplete import autocomplete

        command, _ = _asked(os.environ["COMP_LINE"].split()[1:])
        autocomplete(_parser(command))


def _parser(command: str | None) -> Parser:
    parser = Parser(prog="labkit", description=WORDING["description"]())
    version = {"action": "version", "version": f"labkit {__version__}"}
    add_options(parser, WORDING, "version", version=version)
    add_language(parser, default=None)
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name in COMMANDS:
        purpose = WORDING[f"command {name}"]()
        made = commands.add_parser(name, help=purpose)
        if name == command:
            made.description = purpose
            made.set_defaults(run=_add_arguments(made, name).run)
            add_language(made)
    return parser


def _add_arguments(parser: Parser, command: str) -> ModuleType:
    """Give the parser the command's usage and options: all of its rows, or those that its module adds itself."""
    found = import_module(f"{__name__}.{command}")
    parser.usage = found.WORDING.usage()
    parser.removed = {option: str(text) for option, _, text in found.WORDING.group("removed")}
    if hasattr(found, "add_arguments"):
        found.add_arguments(parser)
    else:
        add_options(parser, found.WORDING, "options")
    return found


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
    for command in (found.command, None):  # without its options, if the command has no such action
        parser = Lenient()
        parser.add_argument("--lang", default=found.lang)
        if command in COMMANDS:
            with suppress(ModuleNotFoundError):  # main says of what is missing
                _add_arguments(parser, command)
        with suppress(UsageError):
            parser.parse_known_args(found.rest, found)
            break
    return found.command, named_language(found.lang)


@contextmanager
def _speaking(language: str | None) -> Iterator[None]:
    """Show everything in ``language`` (None: no change) inside, also in the processes that are started there."""
    if language is None:
        yield
        return
    with environment({VARIABLE: language}), using(language):
        yield
