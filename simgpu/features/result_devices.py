"""Functions with special rules for the device of their results: lengths on the host, labels from any device, views.

A sparse tensor moves its values and indices to ``device=``. Without it, tensors stay where they are, and lists follow
the values (torch/csrc/utils/tensor_new.cpp, sparse_coo_tensor_ctor and its kin). A strided nested tensor moves its
tensors to the device of the first one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, TypedStorage, UntypedStorage

from labkit.base.tree import tensors_in

from ..handlers import Handler, functions_in_row, handles, wraps_handlers
from ..ops.mode import MachineMode
from ..ops.moves import default_gpu, move
from ..rules.functions import check_function
from ..state.current_machine import at_work, replaces
from ..state.gpu import TheMachine
from ..state.placement import gpu_of, place, put, put_again, put_all, type_name


@handles(torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence)
def _pack_padded_sequence(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    check_function(func, args, kwargs)
    data, lengths = func(*args, **kwargs)
    return put(data, gpu_of(args[0])), lengths  # lengths stay on the host


@handles(torch.tensor_split, Tensor.tensor_split)
def _tensor_split(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    check_function(func, args, kwargs)
    return func(*args, **kwargs)  # views of the input; the split points may be on the host


@handles(torch.ctc_loss, torch.nn.functional.ctc_loss)
def _ctc_loss(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # aten/src/ATen/native/LossCTC.cpp: CUDA moves the targets to the data and reads the lengths on the host.
    names = ("log_probs", "targets", "input_lengths", "target_lengths")
    given = dict(zip(names, args, strict=False)) | kwargs
    home = gpu_of(given["log_probs"])
    for name, there in zip(names[1:], (home, None, None), strict=True):
        if isinstance(given[name], Tensor) and gpu_of(given[name]) is not there:
            given[name] = move(mode.machine, given[name], there)
    return put(func(*map(given.pop, names), *args[4:], **given), home)


@handles(Tensor.resize_, Tensor.resize_as_)
def _resize(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, gpu = args[0], gpu_of(args[0])
    if gpu is not None:
        given = (*args[1:], *(kwargs[name] for name in ("size", "the_template") if name in kwargs))
        first = given[0].shape if func is Tensor.resize_as_ else given[:1] and given[0]
        sizes = first if isinstance(first, (tuple, list)) else given
        wanted = (math.prod(sizes) + tensor.storage_offset()) * tensor.element_size()
        if wanted > tensor.untyped_storage().nbytes():
            gpu.make_room(wanted, written=False)  # for both storages (aten/src/ATen/native/cuda/Resize.cpp)
    with at_work(gpu):
        result = func(*args, **kwargs)
    put_again(tensor.untyped_storage())  # its size has changed
    return result


@handles(torch._C._nn.unflatten_dense_tensors)
def _unflatten(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The results are views of the flat tensor; the other tensors only give shapes.
    pieces = func(*args, **kwargs)
    # An empty piece is a new tensor, not a view.
    put_all([piece for piece in pieces if not piece.numel()], gpu_of(args[0]))
    return pieces


@wraps_handlers(torch.tensor, torch.as_tensor, torch.asarray)
def _tensor_from_storage(
    go_on: Handler, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make a tensor of a storage, and move it to ``device``, by default the host.

    torch/csrc/utils/tensor_new.cpp, internal_new_from_data.
    """
    if not args or not isinstance(args[0], (TypedStorage, UntypedStorage)):
        return go_on(mode, func, args, kwargs)
    storage, device, dtype = args[0], kwargs.get("device"), kwargs.get("dtype")
    if isinstance(storage, TypedStorage):
        if dtype not in (None, storage.dtype):
            wanted, got = (type_name(torch.empty(0, dtype=kind))[6:-6] for kind in (dtype, storage.dtype))
            raise RuntimeError(f"Expected a Storage of type {wanted} or an UntypedStorage, but got {got}")
        dtype, storage = storage.dtype, storage._untyped_storage
    tensor = torch.tensor(storage, dtype=dtype)
    target = default_gpu(mode.machine) if device is None else mode.machine.resolve(device)
    return move(mode.machine, tensor, target).requires_grad_(kwargs.get("requires_grad", False))


@wraps_handlers(*functions_in_row("made sparse"))
def _construct(go_on: Handler, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    at = 1 if func is torch.sparse_coo_tensor else 2
    values: Any = args[at] if len(args) > at else kwargs.get("values")
    if kwargs.get("device") is not None:
        target = mode.machine.resolve(kwargs["device"])
    elif isinstance(values, Tensor):
        target = gpu_of(values)
    else:
        target = default_gpu(mode.machine)

    tensors = tensors_in(args, kwargs)
    if kwargs.get("device") is None and len(set(map(gpu_of, tensors))) > 1:
        # Tensors stay where they are (tensor_new.cpp, internal_new_from_data), so mixed devices are refused.
        places = " and ".join(dict.fromkeys(map(place, tensors)))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {places}!"
        )

    def move_to_target(value: Any) -> Any:
        if not isinstance(value, Tensor) or gpu_of(value) is target:
            return value
        return move(mode.machine, value, target)

    kwargs = {name: move_to_target(value) for name, value in kwargs.items()}
    if target is not None:
        kwargs["device"] = target.device
    return go_on(mode, func, tuple(map(move_to_target, args)), kwargs)


@replaces(torch._C._nested, "nested_tensor")
def _make_nested_tensor(
    machine: TheMachine, real: Any, values: Any, *, device: Any = None, **options: Any
) -> Any:
    tensors = tensors_in(values)
    target = machine.resolve(device) if device is not None else gpu_of(tensors[0]) if tensors else None
    if device is not None:
        device = machine.real(target, device)
    return put(real(values, device=device, **options), target)
