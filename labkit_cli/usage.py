"""Commands' options: texts that become arguments, and errors of usage."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from labkit.base.arguments import ARGPARSE
from labkit.base.files import reason
from labkit.base.language import LANGUAGES, named_language, say, wrong
from labkit.base.numbers import MOST_GPUS
from simgpu.children.gpu_models import MODELS

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
def bad_usage(*kinds: type[Exception], file: Path | None = None) -> Iterator[None]:
    """Inside, an error of one of these kinds is a mistake of the user's; its own words are what they see.

    file   what is read or written there: an OSError is told with the name of the file that it is about, else with this.
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
    """Inside, these variables of the environment are set."""
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


def checked_path(option: str, path: Path | None) -> None:
    """Refuse a file that an option names for writing if it cannot be written."""
    if path is not None and (path.is_dir() or not os.access(path.resolve().parent, os.W_OK)):
        raise UsageError(en=f"{option}: cannot write {path}", zh=f"{option}：无法写入 {path}")


def checked_script(script: str) -> None:
    if not Path(script).exists():
        raise UsageError(en=f"no such script: {script}", zh=f"没有脚本 {script}")


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are a :class:`UsageError` instead of a printed usage.

    Each command complains of its own options, and says what was meant if that is known. ``passed_on`` are options of
    another program that the command hands to it; ``removed`` has a sentence for each option that no longer exists.
    """

    strict = True

    def __init__(self, **options: Any) -> None:  # as the parsers of its own actions are made, too
        super().__init__(**options)
        self.passed_on: Collection[str] = ()
        self.removed: Mapping[str, str] = {}
        self.suggest_on_error = False  # newer argparse has an answer of its own, for choices alone
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -3GiB is a value, too

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self.strict:
            for word in unknown:
                if sentence := self.removed.get(word.partition("=")[0]):
                    raise UsageError(sentence)
            words = "unrecognized arguments: %s"
            ours = [option for action in self._actions for option in action.option_strings]
            meant = _meant(unknown, [*ours, *self.passed_on])
            self.error(say(en=words, zh=ARGPARSE[words]) % " ".join(unknown) + meant)
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _meant([str(value)], action.choices or ())
            raise

    def error(self, message: str) -> NoReturn:
        en, zh = f"{message} (see {self.prog} --help)", f"{message}（用法见 {self.prog} --help）"
        raise UsageError(en=en, zh=zh)


def _meant(typed: Iterable[str], known: Iterable[str]) -> str:
    """Asks whether words close to ``known`` ones were meant; an empty text if none is."""
    known = [str(word) for word in known]
    close = [get_close_matches(word.partition("=")[0], known, n=1) for word in typed]
    listed = " ".join(word for words in close for word in words)
    return say(en=f"; did you mean {listed}?", zh=f"；是不是 {listed}？") if listed else ""


class Lenient(Parser):
    """A parser that takes any value: it finds what else is asked for on a line that is wrong somewhere."""

    strict = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"add_help": False})

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        for strict in ("type", "choices", "required"):
            options.pop(strict, None)
        if options.get("nargs") == "+" or isinstance(options.get("nargs"), int):
            options |= {"nargs": "*", "metavar": "VALUE"}
        elif not options.keys() & {"nargs", "action"}:
            options["nargs"] = "?"
        return super().add_argument(*names, **options)


def add_options(
    parser: argparse._ActionsContainer, wording: Wording, group: str, **facts: Mapping[str, Any]
) -> None:
    """Add the options of a group of a command's ``wording`` to a parser, in their order.

    Each has its flags (or the name of a positional argument), how help calls its value, and its help. ``facts``, here
    or of the wording, has what argparse is to know of an option besides, such as its type, under its first flag without
    hyphens. An option
    without a value and without facts is a switch. ``completer``: what gives a shell the words that could stand there.
    """
    for names, metavar, text in wording.group(group):
        flags = names.split("/")
        name = flags[0].strip("-").replace("-", "_")
        more = dict(facts.get(name) or wording.facts.get(name, {}))
        if metavar:
            each = isinstance(more.get("nargs"), int)  # a word for each of the values
            more.setdefault("metavar", tuple(metavar.split()) if each else metavar)
        elif not more:
            more["action"] = "store_true"
        completer = more.pop("completer", None)
        action = parser.add_argument(*flags, help=str(text), **more)
        if completer:
            vars(action)["completer"] = completer  # argcomplete asks for it


# Options that several commands have, each in the same words.
WORDING = Wording("usage")


def add_gpus(parser: argparse.ArgumentParser, least: int) -> None:
    add_options(parser, WORDING, "gpus", gpus={"type": at_least(least, MOST_GPUS), "default": 8})


def add_memory(parser: argparse.ArgumentParser) -> None:
    names = [model.called for model in MODELS]
    add_options(parser, WORDING, "memory", gpu_model={"completer": lambda **_: names})


def add_language(parser: argparse.ArgumentParser, default: str | None = argparse.SUPPRESS) -> None:
    """``--lang``; without a default a parser of a command takes back none that stands before the command."""
    read = {"type": lambda written: named_language(written) or written, "choices": tuple(LANGUAGES)}
    add_options(parser, WORDING, "language", lang=read | {"default": default})


def loading() -> None:
    """Say that PyTorch is loaded now, which takes seconds."""
    logging.getLogger(__name__).info(WORDING["loading"]())


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an argument that is a whole number of at least ``least``, and of no more than ``most``."""

    def whole(text: str) -> int:
        try:
            count = int(text)
        except ValueError:
            en = f"must be a whole number of at least {least}, got {text!r}"
            zh = f"必须是不小于 {least} 的整数，现在是 {text!r}"
            raise wrong(argparse.ArgumentTypeError, en=en, zh=zh) from None
        if count < least:
            en, zh = f"must be at least {least}, got {count}", f"不能小于 {least}，现在是 {count}"
            raise wrong(argparse.ArgumentTypeError, en=en, zh=zh)
        if most is not None and count > most:
            en, zh = f"must be at most {most}, got {count}", f"不能大于 {most}，现在是 {count}"
            raise wrong(argparse.ArgumentTypeError, en=en, zh=zh)
        return count

    return whole
