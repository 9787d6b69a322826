"""A call on its way to other processes: its facts, pickled, and the bytes of its inputs."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..calls.call import Call

# Tensors begin at a multiple of this many bytes, as every dtype wants it.
_ALIGNED = 16
# The length of all, of the words, of the tensors of which the words speak.
_LENGTHS = struct.Struct("=QQ")
# What another process cannot use, or gets in another form.
_OWN = frozenset("code codes inputs memo on_stuck outputs timeout".split())
_SENT = [name for name in Call.__slots__ if name not in _OWN]


class Line:
    """Stands for a code object of another process."""

    def __init__(self, co_filename: str, co_name: str, co_qualname: str) -> None:
        self.co_filename, self.co_name, self.co_qualname = co_filename, co_name, co_qualname

    @classmethod
    def of(cls, code: Any) -> tuple[str, str, str]:
        return code.co_filename, code.co_name, code.co_qualname


def words(call: Call) -> bytes:
    """All but the values."""
    facts = {name: getattr(call, name) for name in _SENT}
    facts["code"] = None if call.code is None else Line.of(call.code)
    facts["codes"] = [Line.of(code) for code in call.codes]
    return pickle.dumps((facts, _kinds(call.inputs), _kinds(call.outputs)))


def _kinds(tensors: Sequence[Tensor]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]


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
            _piece(whole, start, tuple(tensor.shape), tensor.dtype).copy_(tensor)
    return whole


def length(head: Tensor) -> int:
    """The number of bytes of a packed call, by its first ones."""
    return _lengths(head)[0]


def _lengths(head: Tensor) -> tuple[int, int]:
    """The number of bytes of a packed call, and the place in it where its facts end."""
    whole, facts = _LENGTHS.unpack(bytes(head[: _LENGTHS.size].tolist()))
    return whole, _LENGTHS.size + facts


def described_in(head: Tensor) -> Call | None:
    """The call of whose packing this is the beginning, its tensors without values; None if it says not enough."""
    _, begin = _lengths(head)
    return described(head[_LENGTHS.size : begin].numpy().tobytes()) if begin <= len(head) else None


def unpacked(whole: Tensor) -> Call:
    """The call that :func:`packed` packed; inputs are views of ``whole``, outputs have shapes and no values."""
    _, begin = _lengths(whole)
    call, inputs, outputs = told(whole[_LENGTHS.size : begin].numpy().tobytes())
    at = _aligned(begin)
    for shape, dtype in inputs:
        piece = _piece(whole, at, shape, dtype)
        call.inputs.append(piece)
        at = _aligned(at + piece.numel() * piece.element_size())
    call.outputs = _without_values(outputs)
    return call


def told(text: bytes) -> tuple[Call, list[Any], list[Any]]:
    """The call that :func:`words` told of, without tensors, and the shapes and dtypes of those."""
    facts, inputs, outputs = pickle.loads(text)
    call = Call(facts["kind"])
    for name in _SENT:
        setattr(call, name, facts[name])
    code: Any = facts["code"] and Line(*facts["code"])
    codes: list[Any] = [Line(*code) for code in facts["codes"]]
    call.code, call.codes = code, codes
    return call, inputs, outputs


def described(text: bytes) -> Call:
    """The call that :func:`words` told of, whose tensors have no values."""
    call, inputs, outputs = told(text)
    call.inputs, call.outputs = _without_values(inputs), _without_values(outputs)
    return call


def _without_values(kinds: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in kinds]


def _piece(whole: Tensor, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return whole[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
