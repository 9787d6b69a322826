"""Saves and restores the states of Python's and numpy's random numbers in every swap.

Their own functions take 50 µs (Python) and 300 µs (numpy) to save and restore. Both are Mersenne Twisters, whose 625
numbers lie in one place in memory. Reading and writing the memory takes 0.5 µs. It is used only if it holds the numbers
that the functions return.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from functools import cache
from typing import Any

# 624 words of 32 bits, and the number of used ones.
_TWISTER = struct.Struct("=625I")


def _memory(address: int) -> Any:
    return (ctypes.c_char * _TWISTER.size).from_address(address)


class PythonRandom:
    """The state of ``random``, without the attribute ``gauss_next``."""

    def __init__(self) -> None:
        self.memory: Any = None
        if sys.implementation.name == "cpython":
            # Modules/_randommodule.c, RandomObject: the object's head, the number used, the words.
            memory = _memory(id(random._inst) + object.__basicsize__)
            used, *words = _TWISTER.unpack(memory.raw)
            self.memory = memory if (*words, used) == random.getstate()[1] else None

    def get(self) -> Any:
        return random.getstate() if self.memory is None else self.memory.raw

    def set(self, state: Any) -> None:
        if self.memory is None:
            random.setstate(state)
        else:
            self.memory.raw = state


class NumpyRandom:
    """The state of numpy's global generator, which may hold a second normal number elsewhere."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.memory: Any = None
        self._stood, self._left_over = b"", (0, 0.0)  # the state at the last swap
        state = source.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":
            self._generator = source._bit_generator  # keep the generator alive
            memory = _memory(self._generator.ctypes.state_address)  # numpy/random/src/mt19937/mt19937.h
            *words, used = _TWISTER.unpack(memory.raw)
            same = words == state["state"]["key"].tolist() and used == state["state"]["pos"]
            self.memory = memory if same else None

    def get(self) -> Any:
        if self.memory is None:
            return self._source.get_state(legacy=False)
        words = self.memory.raw
        # Drawing the left-over number changes no word, and nothing else leaves one over.
        if words != self._stood or self._left_over[0]:
            state = self._source.get_state(legacy=False)
            self._left_over = state["has_gauss"], state["gauss"]
        return words, self._left_over

    def set(self, state: Any) -> None:
        if self.memory is None:
            self._source.set_state(state)
            return
        words, left_over = state
        if left_over != self._left_over:
            key = {"key": _TWISTER.unpack(words)[:-1], "pos": 0}
            facts = dict(zip(("has_gauss", "gauss"), left_over, strict=True))
            self._source.set_state({"bit_generator": "MT19937", "state": key, **facts})
        self.memory.raw = self._stood = words
        self._left_over = left_over


@cache
def python_random() -> PythonRandom:
    return PythonRandom()


def numpy_random() -> NumpyRandom | None:
    """Return the state of numpy's generator; None if numpy is not imported."""
    return _numpy() if "numpy.random" in sys.modules else None


@cache
def _numpy() -> NumpyRandom:
    return NumpyRandom(sys.modules["numpy.random"].mtrand._rand)
