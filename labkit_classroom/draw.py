"""Draw numbers for a student: reproducible from a secret and names, and unpredictable without the secret."""

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
OPEN = b"open examples"  # instead of a secret


class Draw:
    """A source of random numbers.

    numbers   the numbers of the student's edition (see :meth:`with_numbers`).
    """

    def __init__(self, seed: bytes, numbers: Numbers | None = None) -> None:
        self._seed, self._random = seed, random.Random(seed)
        self.numbers: Numbers = numbers or {}

    @classmethod
    def from_secret(cls, secret: bytes, *names: str) -> Draw:
        """Return the draw that ``secret`` and ``names`` (student, assignment, …) determine."""
        words = b"".join(len(word).to_bytes(4, "big") + word for word in (name.encode() for name in names))
        return cls(hmac.digest(secret, words, hashlib.sha256))

    def with_numbers(self, numbers: Numbers) -> Draw:
        """Return the same draw from its beginning, with a student's ``numbers``."""
        return Draw(self._seed, numbers)

    def integer(self, least: int, most: int) -> int:
        """Draw a whole number from ``least`` to ``most``, both included."""
        return self._random.randint(least, most)

    def choice(self, values: Sequence[_Value]) -> _Value:
        return self._random.choice(values)

    def sample(self, values: Sequence[_Value], count: int) -> list[_Value]:
        """Draw ``count`` different values, in any order."""
        return self._random.sample(values, count)

    def tensor(self, *shape: int) -> Tensor:
        """Draw float32 numbers from -4 to 4, multiples of 1/16, so that sums of up to 10,000 numbers are exact."""
        import torch

        drawn = torch.Generator().manual_seed(self._random.getrandbits(60))
        return torch.randint(-64, 65, shape, generator=drawn) / 16
