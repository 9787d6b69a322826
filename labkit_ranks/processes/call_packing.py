"""Packs calls for other processes."""

from __future__ import annotations

import io
import pickle
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from ..calls.call import CollectiveCall

# The fields of a call that another process can use.
_SENT = [name for name in CollectiveCall.__slots__ if name not in ("memo", "on_deadlock", "timeout")]


class RemoteCode:
    """Replaces a code object of another process."""

    def __init__(self, co_filename: str, co_name: str, co_qualname: str) -> None:
        self.co_filename, self.co_name, self.co_qualname = co_filename, co_name, co_qualname


class _CallPickler(pickle.Pickler):
    """Pickles calls and code objects; of tensors, only shape and dtype, or with ``values`` those of the inputs."""

    def __init__(self, file: io.BytesIO, values: bool) -> None:
        super().__init__(file, protocol=5)
        self._values = values

    def reducer_override(self, found: Any) -> Any:
        if type(found) is CollectiveCall:
            facts = {name: getattr(found, name) for name in _SENT}
            facts["outputs"] = list(map(_like, found.outputs))
            facts["inputs"] = found.inputs if self._values else list(map(_like, found.inputs))
            return _restore_call, (facts,)
        if isinstance(found, Tensor):
            values = None if found.is_meta else bytearray(_bytes_of(found))
            return _restore_tensor, (tuple(found.shape), found.dtype, values)
        if isinstance(found, CodeType):
            return RemoteCode, (found.co_filename, found.co_name, found.co_qualname)
        return NotImplemented


def _restore_call(facts: dict[str, Any]) -> CollectiveCall:
    call = CollectiveCall("")
    for name, value in facts.items():
        setattr(call, name, value)
    return call


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _bytes_of(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _restore_tensor(shape: tuple[int, ...], dtype: torch.dtype, values: bytearray | None) -> Tensor:
    if values:
        return torch.frombuffer(values, dtype=dtype).view(shape)
    return torch.empty(shape, dtype=dtype, device="meta" if values is None else "cpu")


def pack(found: object, *, values: bool = False) -> bytes:
    """Pack a call, or an object with calls in it; with ``values``, also those of the inputs."""
    packed = io.BytesIO()
    _CallPickler(packed, values).dump(found)
    return packed.getvalue()
