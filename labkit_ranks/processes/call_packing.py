"""A call on its way to other processes: its facts, pickled, and the bytes of its inputs."""

from __future__ import annotations

import io
import pickle
import struct
from math import prod
from operator import attrgetter
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from ..calls.call import Call

# Tensors begin at a multiple of this many bytes, as every dtype wants it.
_ALIGNED = 16
# The length of all, of the words, of the tensors of which the words speak.
_LENGTHS = struct.Struct("=QQ")
# All of a call but what another process cannot use.
_SENT = [name for name in Call.__slots__ if name not in ("memo", "on_stuck", "timeout")]
_sent = attrgetter(*_SENT)


class Line:
    """Stands for a code object of another process."""

    def __init__(self, co_filename: str, co_name: str, co_qualname: str) -> None:
        self.co_filename, self.co_name, self.co_qualname = co_filename, co_name, co_qualname


class _Words(pickle.Pickler):
    """Calls without the values of their tensors, and lines of code by their names."""

    def reducer_override(self, found: Any) -> Any:
        if type(found) is Call:
            return _call, _sent(found)
        if isinstance(found, Tensor):
            return _without_values, (tuple(found.shape), found.dtype)
        if isinstance(found, CodeType):
            return Line, (found.co_filename, found.co_name, found.co_qualname)
        return NotImplemented


def _call(*sent: Any) -> Call:
    call = Call("")
    for name, value in zip(_SENT, sent, strict=True):
        setattr(call, name, value)
    return call


def _without_values(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def words(found: object) -> bytes:
    """A call, or what has calls in it, for ``pickle.loads``: all but the values of tensors."""
    text = io.BytesIO()
    _Words(text).dump(found)
    return text.getvalue()


def packed(call: Call) -> Tensor:
    """The call and a copy of its inputs, as bytes on the host."""
    text = words(call)
    inputs = [tensor.detach().resolve_conj().resolve_neg() for tensor in call.inputs]
    begin = _LENGTHS.size + len(text)
    ends, at = [], _aligned(begin)
    for tensor in inputs:
        ends.append(at)
        at = _aligned(at + tensor.numel() * tensor.element_size())
    whole = torch.empty(at, dtype=torch.uint8)
    whole[:begin] = torch.frombuffer(bytearray(_LENGTHS.pack(at, len(text)) + text), dtype=torch.uint8)
    for tensor, start in zip(inputs, ends, strict=True):
        if tensor.numel():
            _piece(whole, start, tensor).copy_(tensor)
    return whole


def length(head: Tensor) -> int:
    """The number of bytes of a packed call, by its first ones."""
    return _lengths(head)[0]


def _lengths(head: Tensor) -> tuple[int, int]:
    """The number of bytes of a packed call, and the place in it where its facts end."""
    whole, facts = _LENGTHS.unpack(bytes(head[: _LENGTHS.size].tolist()))
    return whole, _LENGTHS.size + facts


def described(head: Tensor) -> Call | None:
    """The call of whose packing this is the beginning, its tensors without values; None if it says not enough."""
    _, begin = _lengths(head)
    if begin > len(head):
        return None
    call: Call = pickle.loads(head[_LENGTHS.size : begin].numpy().tobytes())
    return call


def unpacked(whole: Tensor) -> Call:
    """The call that :func:`packed` packed; inputs are views of ``whole``, outputs have shapes and no values."""
    call = described(whole)
    assert call is not None
    at, inputs = _aligned(_lengths(whole)[1]), []
    for like in call.inputs:
        inputs.append(_piece(whole, at, like))
        at = _aligned(at + like.numel() * like.element_size())
    call.inputs = inputs
    return call


def _piece(whole: Tensor, start: int, like: Tensor) -> Tensor:
    return whole[start : start + prod(like.shape) * like.element_size()].view(like.dtype).view(like.shape)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
