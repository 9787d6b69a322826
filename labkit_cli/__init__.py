"""The command line: one module for each command in COMMANDS.

A command's module has ``WORDING``, with texts and options as rows, and ``run(options) -> exit code``. A command with
more options than the group ``options`` adds these in ``add_arguments(parser)``. Bad usage prints one line on stderr and
exits with 2, before the command writes or runs anything. A crash of labkit exits with 70, so that 1 always means a
command's finding. ``--lang`` may precede the command or be among its options, but not among a script's arguments.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from labkit import __version__
from labkit.base.arguments import localize_argparse
from labkit.base.extras import MissingPackage, explain_missing
from labkit.base.language import VARIABLE, get_language, named_language, say, using

from . import console
from .usage import WORDING, Parser, UsageError, add_language, add_options, environment

# The commands, each a module of this folder; main imports only the requested module.
COMMANDS = (
    "run torchrun plan sweep diagnose check parity explain lab lessons assignment grade submit doctor".split()
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    alone = argv is None  # started as a program, not called in a test or a notebook
    argv = sys.argv[1:] if argv is None else argv
    if alone:
        console.replace_unencodable()
        console.show_progress()
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        get_language()
    for complaint in complaints:
        print(f"labkit: {complaint.message}", file=sys.stderr)
    command = next((word for word in argv if word in COMMANDS), None)
    language = _language_in(argv)
    encoding = console.encoding_without_chinese() if (language or get_language()) == "zh" else None
    if encoding:
        print(f"labkit: this console's encoding, {encoding}, has no Chinese: using English", file=sys.stderr)
    try:
        with _use_language("en" if encoding else language), localize_argparse():
            argv, rest = _split_arguments(argv, command)
            options = _parser(command).parse_args(argv, Namespace(alone=alone, rest=rest))
        options.reader = options.lang or get_language()
        with _use_language("en" if encoding else options.lang):
            code: int = options.run(options)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"labkit: {' '.join(str(error).split())}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has ended, as ``| head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        missing = explain_missing(error) if isinstance(error, ModuleNotFoundError) else None
        if isinstance(missing, MissingPackage):
            print(f"labkit: {missing}", file=sys.stderr)
            return 69  # EX_UNAVAILABLE of sysexits.h
        traceback.print_exc()
        en, zh = "this is a bug in labkit, not your mistake", "这是 labkit 自身的错误，不是你的问题"
        print(f"labkit: {say(en=en, zh=zh)}", file=sys.stderr)
        return 70  # EX_SOFTWARE of sysexits.h


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
    """Import the command's module, and add usage and options to the parser."""
    found = import_module(f"{__name__}.{command}")
    parser.usage = found.WORDING.usage()
    parser.removed = {option: str(text) for option, _, text in found.WORDING.group("removed")}
    if hasattr(found, "add_arguments"):
        found.add_arguments(parser)
    else:
        add_options(parser, found.WORDING, "options")
    return found


def _split_arguments(argv: list[str], command: str | None) -> tuple[list[str], list[str]]:
    """Return the command's arguments, and the arguments for another program that the command starts."""
    found = import_module(f"{__name__}.{command}") if command in COMMANDS else None
    split: Callable[[list[str]], tuple[list[str], list[str]]] | None = getattr(found, "split_arguments", None)
    return split(argv) if split else (argv, [])


def _language_in(argv: list[str]) -> str | None:
    """Return the last language on the line, in which to report mistakes; it may be an argument of a script."""
    written = re.findall(r"^--lang[=\n](.*)$", "\n".join(argv), re.MULTILINE)
    return next((language for text in reversed(written) if (language := named_language(text))), None)


@contextmanager
def _use_language(language: str | None) -> Iterator[None]:
    """Use ``language`` (None: no change) in the current process and its children."""
    if language is None:
        yield
        return
    with environment({VARIABLE: language}), using(language):
        yield
