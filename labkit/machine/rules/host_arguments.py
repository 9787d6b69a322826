"""Functions that want some of their tensors on the host wherever the data is: lengths, split points, labels."""

from __future__ import annotations

import torch

from ..handlers import handles
from ..ops.moves import move
from ..state.placement import gpu_of, put


@handles(torch._VF._pack_padded_sequence)
def _pack(mode, func, args, kwargs):
    data, lengths = args[0], args[1]
    gpu = gpu_of(lengths)
    if gpu is not None:
        kind = str(lengths.dtype).removeprefix("torch.").replace("int64", "Long").replace("int32", "Int")
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D {gpu.device} {kind} tensor"
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


@handles(torch.tensor_split, torch.Tensor.tensor_split)
def _tensor_split(mode, func, args, kwargs):
    points = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
    if isinstance(points, torch.Tensor):
        if gpu_of(points) is not None:
            raise RuntimeError(
                "tensor_split expected tensor_indices_or_sections to be on cpu, "
                f"but it's on {gpu_of(points).device}"
            )
        return func(*args, **kwargs)  # views of the input: they are where it is
    return mode.general(func, args, kwargs)


@handles(torch.ctc_loss, torch.nn.functional.ctc_loss)
def _ctc_loss(mode, func, args, kwargs):
    # On CUDA it takes targets and lengths from anywhere: it brings the first to the data, reads the others.
    names = ("log_probs", "targets", "input_lengths", "target_lengths")
    given = dict(zip(names, args, strict=False)) | kwargs
    home = gpu_of(given["log_probs"])
    for name, there in zip(names[1:], (home, None, None), strict=True):
        if isinstance(given[name], torch.Tensor) and gpu_of(given[name]) is not there:
            given[name] = move(mode.machine, given[name], there)
    result = func(*map(given.pop, names), *args[4:], **given)
    if home is not None:
        put(result, home)
    return result
