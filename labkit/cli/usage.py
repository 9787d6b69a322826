"""Commands' options: texts that become arguments, and errors of usage."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ..base.language import LANGUAGES, VARIABLE, named_language, say
from .wording import Wording


class UsageError(Exception):
    """Something the user typed that cannot work; the message is the one line they see.

    It is given as another error's own text, or in both languages: ``UsageError(en="no such script", zh="没有脚本")``.
    """

    code = 2

    def __init__(self, text: object = "", *, en: str = "", zh: str = "") -> None:
        super().__init__(str(text) or say(en=en, zh=zh))


class CannotWrite(UsageError):
    """A file of the user's cannot be written."""

    code = 74  # EX_IOERR of sysexits.h


@contextmanager
def bad_usage(*kinds: type[Exception]) -> Iterator[None]:
    """Inside, an error of one of these kinds is a mistake of the user's; its own words are what they see."""
    try:
        yield
    except kinds as error:
        raise UsageError(error) from None


def checked_path(option: str, path: Path | None) -> None:
    """Refuse a file that an option names for writing if it cannot be written."""
    if path is not None and (path.is_dir() or not os.access(path.resolve().parent, os.W_OK)):
        raise UsageError(en=f"{option}: cannot write {path}", zh=f"{option}：无法写入 {path}")


def checked_script(script: str) -> None:
    if not Path(script).exists():
        raise UsageError(en=f"no such script: {script}", zh=f"没有脚本 {script}")


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are a :class:`UsageError` instead of a printed usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            en=f"{message} (see {self.prog} --help)", zh=f"{message}（用法见 {self.prog} --help）"
        )


class Lenient(Parser):
    """A parser that takes any value: it finds what else is asked for on a line that is wrong somewhere."""

    def __init__(self, **options: Any) -> None:  # as the parsers of its own actions are made, too
        super().__init__(**options | {"add_help": False})

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        for strict in ("type", "choices", "required"):
            options.pop(strict, None)
        if options.get("nargs") == "+" or isinstance(options.get("nargs"), int):
            options["nargs"] = "*"
        elif not options.keys() & {"nargs", "action"}:
            options["nargs"] = "?"
        return super().add_argument(*names, **options)


def add_options(
    parser: argparse._ActionsContainer, wording: Wording, group: str, **facts: Mapping[str, Any]
) -> None:
    """Add the options of a group of a command's ``wording`` to a parser, in their order.

    Each has its flags (or the name of a positional argument), how help calls its value, and its help. ``facts`` has
    what argparse is to know of an option besides, such as its type, under its first flag without hyphens. An option
    without a value and without facts is a switch.
    """
    for names, metavar, text in wording.group(group):
        flags = names.split("/")
        more = dict(facts.get(flags[0].strip("-").replace("-", "_"), {}))
        if metavar:
            more.setdefault("metavar", metavar)
        elif not more:
            more["action"] = "store_true"
        parser.add_argument(*flags, help=str(text), **more)


# Options that several commands have, each in the same words.
WORDING = Wording("usage")


def add_gpus(parser: argparse.ArgumentParser, least: int) -> None:
    add_options(parser, WORDING, "gpus", gpus={"type": at_least(least), "default": 8})


def add_memory(parser: argparse.ArgumentParser) -> None:
    add_options(parser, WORDING, "memory", memory={"default": "16 GiB"})


def add_language(parser: argparse.ArgumentParser, default: str | None = argparse.SUPPRESS) -> None:
    """``--lang``; without a default a parser of a command takes back none that stands before the command."""
    text = say(
        en=f"language of all that is shown (default: what {VARIABLE} names, else the system's)",
        zh=f"显示所用的语言（默认取环境变量 {VARIABLE}，没有则用系统的语言）",
    )
    parser.add_argument(
        "--lang",
        type=lambda written: named_language(written) or written,
        choices=tuple(LANGUAGES),
        default=default,
        help=text,
    )


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number of at least ``least``."""

    def whole(text: str) -> int:
        try:
            count = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                say(
                    en=f"must be a whole number of at least {least}, got {text!r}",
                    zh=f"必须是不小于 {least} 的整数，现在是 {text!r}",
                )
            ) from None
        if count < least:
            raise argparse.ArgumentTypeError(
                say(en=f"must be at least {least}, got {count}", zh=f"不能小于 {least}，现在是 {count}")
            )
        return count

    return whole
