"""Draws numbers for a student: always the same from the same names, and not to be guessed without the secret."""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

_Value = TypeVar("_Value")
Numbers = Mapping[str, int | str]


class Draw:
    """A source of random numbers.

    numbers   the student's own variant of the assignment's numbers (see :meth:`having`).
    """

    def __init__(self, seed: bytes, numbers: Numbers | None = None) -> None:
        self._seed, self._random = seed, random.Random(seed)
        self.numbers: Numbers = numbers or {}

    @classmethod
    def seeded(cls, secret: bytes, *names: str) -> Draw:
        """Make the draw of ``secret`` and ``names`` (student, assignment, …), which is the same each time."""
        words = b"".join(len(word).to_bytes(4, "big") + word for word in (name.encode() for name in names))
        return cls(hmac.digest(secret, words, hashlib.sha256))

    def having(self, numbers: Numbers) -> Draw:
        """Start the same draw again, with a student's ``numbers``."""
        return Draw(self._seed, numbers)

    def integer(self, least: int, most: int) -> int:
        """A whole number; both ends can be drawn."""
        return self._random.randint(least, most)

    def choice(self, values: Sequence[_Value]) -> _Value:
        return self._random.choice(values)

    def sample(self, values: Sequence[_Value], count: int) -> list[_Value]:
        """``count`` different ones of ``values``, in any order."""
        return self._random.sample(values, count)

    def tensor(self, *shape: int) -> Tensor:
        """Draws float32 numbers from -4 to 4. They are multiples of 1/16, so sums of up to 10,000 of them are exact."""
        import torch

        drawn = torch.Generator().manual_seed(self._random.getrandbits(60))
        return torch.randint(-64, 65, shape, generator=drawn) / 16
