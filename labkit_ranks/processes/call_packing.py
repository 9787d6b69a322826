"""Packs calls for other processes: pickled facts, and the bytes of the inputs."""

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

from ..calls.call import CollectiveCall

# Alignment of tensors in bytes, enough for every dtype.
_ALIGNED = 16
# The length of the whole packed call, and of its pickled facts.
_LENGTHS = struct.Struct("=QQ")
# The fields of a call that another process can use.
_SENT = [name for name in CollectiveCall.__slots__ if name not in ("memo", "on_deadlock", "timeout")]
_sent = attrgetter(*_SENT)


class RemoteCode:
    """Replaces a code object of another process."""

    def __init__(self, co_filename: str, co_name: str, co_qualname: str) -> None:
        self.co_filename, self.co_name, self.co_qualname = co_filename, co_name, co_qualname


class _FactsPickler(pickle.Pickler):
    """Pickles calls without the values of tensors, and code objects as names."""

    def reducer_override(self, found: Any) -> Any:
        if type(found) is CollectiveCall:
            return _restore_call, _sent(found)
        if isinstance(found, Tensor):
            return _make_meta_tensor, (tuple(found.shape), found.dtype)
        if isinstance(found, CodeType):
            return RemoteCode, (found.co_filename, found.co_name, found.co_qualname)
        return NotImplemented


def _restore_call(*sent: Any) -> CollectiveCall:
    call = CollectiveCall("")
    for name, value in zip(_SENT, sent, strict=True):
        setattr(call, name, value)
    return call


def _make_meta_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def pickle_facts(found: object) -> bytes:
    """Pickle a call, or an object with calls in it, without the values of tensors."""
    text = io.BytesIO()
    _FactsPickler(text).dump(found)
    return text.getvalue()


def pack_call(call: CollectiveCall) -> Tensor:
    """Return a call and a copy of its inputs as a tensor of bytes on the host."""
    text = pickle_facts(call)
    inputs = [tensor.detach().resolve_conj().resolve_neg() for tensor in call.inputs]
    begin = _LENGTHS.size + len(text)
    ends, at = [], _align(begin)
    for tensor in inputs:
        ends.append(at)
        at = _align(at + tensor.numel() * tensor.element_size())
    whole = torch.empty(at, dtype=torch.uint8)
    whole[:begin] = torch.frombuffer(bytearray(_LENGTHS.pack(at, len(text)) + text), dtype=torch.uint8)
    for tensor, start in zip(inputs, ends, strict=True):
        if tensor.numel():
            _view_like(whole, start, tensor).copy_(tensor)
    return whole


def packed_length(head: Tensor) -> int:
    """Return the number of bytes of a packed call, given the first bytes."""
    return _lengths(head)[0]


def _lengths(head: Tensor) -> tuple[int, int]:
    """Return the number of bytes of a packed call, and the end of its facts."""
    whole, facts = _LENGTHS.unpack(bytes(head[: _LENGTHS.size].tolist()))
    return whole, _LENGTHS.size + facts


def unpack_facts(head: Tensor) -> CollectiveCall | None:
    """Return a call without values from the beginning of a packed one; None if the beginning is too short."""
    _, begin = _lengths(head)
    if begin > len(head):
        return None
    call: CollectiveCall = pickle.loads(head[_LENGTHS.size : begin].numpy().tobytes())
    return call


def unpack_call(whole: Tensor) -> CollectiveCall:
    """Return a packed call. Inputs are views of ``whole``; outputs have shapes but no values."""
    call = unpack_facts(whole)
    assert call is not None
    at, inputs = _align(_lengths(whole)[1]), []
    for like in call.inputs:
        inputs.append(_view_like(whole, at, like))
        at = _align(at + like.numel() * like.element_size())
    call.inputs = inputs
    return call


def _view_like(whole: Tensor, start: int, like: Tensor) -> Tensor:
    return whole[start : start + prod(like.shape) * like.element_size()].view(like.dtype).view(like.shape)


def _align(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
