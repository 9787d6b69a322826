"""What a user may type: bad usage as an error of its own, and the types of arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn


class UsageError(Exception):
    """Something the user typed that cannot work; the message is the one line they see."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are a :class:`UsageError` instead of a printed usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number of at least ``least``."""

    def whole(text: str) -> int:
        try:
            count = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, got {text!r}"
            ) from None
        if count < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {count}")
        return count

    return whole
