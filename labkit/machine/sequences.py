"""Packed sequences: their lengths and batch sizes stay on the host, whatever GPU the data is on."""

from __future__ import annotations

import torch

from .mode import handles
from .placement import gpu_of, put


@handles(torch._VF._pack_padded_sequence)
def _pack(mode, func, args, kwargs):
    data, lengths = args[0], args[1]
    gpu = gpu_of(lengths)
    if gpu is not None:
        kind = str(lengths.dtype).removeprefix("torch.").replace("int64", "Long").replace("int32", "Int")
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D {gpu.device} {kind} tensor"
        )
    packed, batch_sizes = func(*args, **kwargs)
    if gpu_of(data) is not None:
        put(packed, gpu_of(data))
    return packed, batch_sizes


@handles(torch._VF._pad_packed_sequence)
def _pad(mode, func, args, kwargs):
    padded, lengths = func(*args, **kwargs)
    if gpu_of(args[0]) is not None:
        put(padded, gpu_of(args[0]))
    return padded, lengths
