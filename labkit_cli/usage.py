"""Parsers of the command line: options from text rows, and usage errors of one line."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from labkit.base.arguments import ARGPARSE
from labkit.base.files import reason
from labkit.base.language import LANGUAGES, named_language, say, wrong
from labkit.base.numbers import MOST_GPUS

from .wording import Wording


class UsageError(Exception):
    """A mistake on the command line; its message is the only line that the user sees.

    Pass another error's text, or both languages: ``UsageError(en="no such script", zh="没有脚本")``.
    """

    code = 2

    def __init__(self, text: object = "", *, en: str = "", zh: str = "") -> None:
        super().__init__(str(text) or say(en=en, zh=zh))


class CannotWrite(UsageError):
    """A user's file that cannot be written."""

    code = 74  # EX_IOERR of sysexits.h


@contextmanager
def bad_usage(*kinds: type[Exception], file: Path | None = None) -> Iterator[None]:
    """Turn errors of these kinds into a UsageError with the same text.

    file   the file being read or written: also turn an OSError, with the name of its file, or else of this one.
    """
    try:
        yield
    except kinds as error:
        raise UsageError(error) from None
    except OSError as error:
        if file is None or isinstance(error, BrokenPipeError):
            raise
        raise UsageError(f"{error.filename or file}: {reason(error)}") from None


@contextmanager
def environment(names: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore the former values afterwards."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_writable(option: str, path: Path | None) -> None:
    """Raise UsageError if the file given to ``option`` cannot be written."""
    if path is not None and (path.is_dir() or not os.access(path.resolve().parent, os.W_OK)):
        raise UsageError(en=f"{option}: cannot write {path}", zh=f"{option}：无法写入 {path}")


def check_script_exists(script: str) -> None:
    if not Path(script).exists():
        raise UsageError(en=f"no such script: {script}", zh=f"没有脚本 {script}")


def split_program(words: Sequence[str], module: bool = False) -> tuple[str, list[str], bool]:
    """Return a script or module, its arguments, and whether it is a module (``-m`` may stand in ``words``, too).

    As torchrun does, leave out a ``--`` between a script and its arguments.
    """
    if module or words[:1] == ["-m"]:
        words, module = words[not module :], True
    if not words:
        raise UsageError(en="-m needs the name of a module", zh="-m 后面要写模块名")
    script, *arguments = words
    if not module:
        check_script_exists(script)
    return script, arguments[arguments[:1] == ["--"] :], module


class Parser(argparse.ArgumentParser):
    """An argument parser that raises :class:`UsageError` with a suggestion, instead of printing usage.

    removed   option that does not exist, or no longer -> the error for it.
    advice    text to add to the error for an unknown option.
    """

    def __init__(self, **options: Any) -> None:  # argparse creates subparsers with the same arguments
        super().__init__(**options)
        self.removed: Mapping[str, str] = {}
        self.advice = ""
        self.suggest_on_error = False  # newer versions of argparse suggest choices, but not options
        self._negative_number_matcher = re.compile(r"-\.?\d")  # accept values such as -3GiB

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            for word in unknown:
                if sentence := self.removed.get(word.partition("=")[0]):
                    raise UsageError(sentence)
            words = "unrecognized arguments: %s"
            ours = [option for action in self._actions for option in action.option_strings]
            meant = _suggest(unknown, ours) + self.advice
            self.error(say(en=words, zh=ARGPARSE[words]) % " ".join(unknown) + meant)
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _suggest([str(value)], action.choices or ())
            raise

    def error(self, message: str) -> NoReturn:
        en, zh = f"{message} (see {self.prog} --help)", f"{message}（用法见 {self.prog} --help）"
        raise UsageError(en=en, zh=zh)


def _suggest(typed: Iterable[str], known: Iterable[str]) -> str:
    """Return a question with the known words closest to the typed ones, or ""."""
    known = [str(word) for word in known]
    close = [get_close_matches(word.partition("=")[0], known, n=1) for word in typed]
    listed = " ".join(word for words in close for word in words)
    return say(en=f"; did you mean {listed}?", zh=f"；是不是 {listed}？") if listed else ""


def add_options(
    parser: argparse._ActionsContainer, wording: Wording, group: str, **facts: Mapping[str, Any]
) -> None:
    """Add the options of a group of ``wording`` to a parser.

    ``facts``, here or in the wording, maps an option's first flag, without hyphens, to further arguments for argparse,
    such as ``type``. An option without a metavar and facts is a switch.
    """
    for names, metavar, text in wording.group(group):
        flags = names.split("/")
        name = flags[0].strip("-").replace("-", "_")
        more = dict(facts.get(name) or wording.facts.get(name, {}))
        if metavar:
            each = isinstance(more.get("nargs"), int)  # argparse wants one metavar per value
            more.setdefault("metavar", tuple(metavar.split()) if each else metavar)
        elif not more:
            more["action"] = "store_true"
        parser.add_argument(*flags, help=str(text), **more)


# Facts of the option ``-m`` of commands that run a script for torchrun.
MODULE = {"dest": "module", "action": "store_true"}
# Options shared by several commands.
WORDING = Wording("usage")


def add_gpus(parser: argparse.ArgumentParser, least: int) -> None:
    add_options(parser, WORDING, "gpus", gpus={"type": at_least(least, MOST_GPUS), "default": 8})


def add_memory(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WORDING, "memory")


def add_language(parser: argparse.ArgumentParser, default: str | None = argparse.SUPPRESS) -> None:
    """Add ``--lang``. A command's parser has no default, which would override a language before the command."""
    read = {"type": lambda written: named_language(written) or written, "choices": tuple(LANGUAGES)}
    add_options(parser, WORDING, "language", lang=read | {"default": default})


def announce_loading() -> None:
    """Log that PyTorch is being loaded, which takes seconds."""
    logging.getLogger(__name__).info(WORDING["loading"]())


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse type: a whole number from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            count = int(text)
        except ValueError:
            count = least - 1
        if count < least:
            en = f"must be a whole number of at least {least}, got {text!r}"
            zh = f"必须是不小于 {least} 的整数，现在是 {text!r}"
            raise wrong(argparse.ArgumentTypeError, en=en, zh=zh)
        if most is not None and count > most:
            en, zh = f"must be at most {most}, got {count}", f"不能大于 {most}，现在是 {count}"
            raise wrong(argparse.ArgumentTypeError, en=en, zh=zh)
        return count

    return parse
