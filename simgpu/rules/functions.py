"""Errors of single functions of torch about tensors on the wrong device.

These are the checks that PyTorch writes by hand, in its words. To add a function, write a rule: it gets the arguments
under their names in torch, and raises the error of the real machine. The operators of a call that passes are checked
by :mod:`.operators`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from labkit.base.files import rows_beside
from labkit.base.language import wrong
from labkit.base.tree import tensors_in

from ..handlers import functions_named
from ..state.errors import NotSimulated
from ..state.gpu import Gpu
from ..state.placement import gpu_of, name_of, place, type_in_errors

Rule = Callable[..., None]

# function -> its rule, for calls with tensors on several devices.
RULES: dict[object, Rule] = {}
# Functions whose rule applies to every call, because a single tensor can be on the wrong device.
ALWAYS: list[object] = []


def check_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise the error of ``func`` about the devices of the arguments, if a rule says so."""
    rule = RULES.get(func)
    if rule is None:
        return
    try:
        given = inspect.signature(rule).bind(*args, **kwargs)
    except TypeError:
        return  # wrong arguments: torch raises its own error
    rule(*given.args, **given.kwargs)


def _rule(names: str, *, always: bool = False) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        functions = functions_named(names)
        RULES.update(dict.fromkeys(functions, rule))
        ALWAYS.extend(functions if always else ())
        return rule

    return register


def _elsewhere(other: object, tensor: Tensor) -> bool:
    """Whether ``other`` is a tensor on another device than ``tensor``."""
    return isinstance(other, Tensor) and gpu_of(other) is not gpu_of(tensor)


def _one_device(parameters: list[str], words: str) -> Rule:
    """Return a rule that refuses a tensor among ``parameters`` on another device than the first one."""

    def rule(*args: Any, **kwargs: Any) -> None:
        given = dict(zip(parameters, args, strict=False)) | kwargs
        tensors = {name: given[name] for name in parameters if isinstance(given.get(name), Tensor)}
        for other in tensors.values():
            if _elsewhere(other, next(iter(tensors.values()))):
                places = {name: place(tensor) for name, tensor in tensors.items()}
                raise RuntimeError(words.format(other=place(other), **places))

    return rule


def _host(parameters: list[str], words: str, error: type[Exception]) -> Rule:
    """Return a rule that refuses a tensor on a GPU as the last of ``parameters``."""

    def rule(*args: Any, **kwargs: Any) -> None:
        tensor = (dict(zip(parameters, args, strict=False)) | kwargs).get(parameters[-1])
        if isinstance(tensor, Tensor) and gpu_of(tensor) is not None:
            raise error(words.format(place=place(tensor)))

    return rule


# Rules that are only a message. The last column names PyTorch's source.
for _kind, _names, _parameters, _words, _ in rows_beside(__file__):
    _error = TypeError if _kind.endswith("type error") else RuntimeError
    _of: Any = _one_device if _kind == "one device" else partial(_host, error=_error)
    _rule(_names, always="always" in _kind)(_of(_parameters.split(), _words))


# Functions of several operators, which check their arguments first.


@_rule("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
def _convolution(input: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any, **__: Any) -> None:
    # aten/src/ATen/native/Convolution.cpp, check_input_same_type_as_parameters. It compares types, not GPUs.
    for label, other in (("weight", weight), ("bias", bias)):
        if isinstance(other, Tensor) and (gpu_of(other) is None) != (gpu_of(input) is None):
            mine, theirs = type_in_errors(input), type_in_errors(other)
            raise RuntimeError(f"Input type ({mine}) and {label} type ({theirs}) should be the same")


@_rule("lstm gru rnn_tanh rnn_relu")
def _recurrent(data: Tensor, second: Any, third: Any, fourth: Any = None, *_: Any, **__: Any) -> None:
    # aten/src/ATen/native/RNN.cpp, check_attributes. (data, hidden, weights, ...), or, for packed sequences,
    # (data, batch_sizes, hidden, weights, ...), where the sizes stay on the host.
    packed = isinstance(second, Tensor) and isinstance(fourth, (tuple, list)) and second.dim() == 1
    groups = (third, fourth) if packed else (second, third)
    for label, group in zip(("hidden", "parameter"), groups, strict=True):
        for tensor in tensors_in(group):
            if gpu_of(tensor) is not gpu_of(data):
                raise RuntimeError(
                    f"Input and {label} tensors are not at the same device, found input tensor at "
                    f"{place(data)} and {label} tensor at {place(tensor)}"
                )


@_rule("meshgrid cartesian_prod")
def _meshgrid(*tensors: Any, **_: Any) -> None:
    if len({gpu_of(tensor) for tensor in tensors_in(tensors)}) > 1:
        raise RuntimeError("torch.meshgrid expects all tensors to have the same device")


@_rule("block_diag")
def _block_diag(first: Tensor, *others: Tensor) -> None:
    for at, other in enumerate(others, start=1):
        if _elsewhere(other, first):
            raise RuntimeError(
                "torch.block_diag: input tensors must all be on the same device. "
                f"Input 0 is on device {place(first)} and input {at} is on device {place(other)}"
            )


# Arguments that must be on the host wherever the data are.


@_rule("_VF._pack_padded_sequence")
def _lengths(input: Tensor, lengths: Tensor, *_: Any, **__: Any) -> None:
    # aten/src/ATen/native/PackedSequence.cpp, checkLongTensor
    if gpu_of(lengths) is not None:
        kind = str(lengths.dtype).removeprefix("torch.").replace("int64", "Long").replace("int32", "Int")
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D {place(lengths)} {kind} tensor"
        )


# Functions for tensors in host memory alone.


@_rule("Tensor.numpy Tensor.__array__", always=True)
def _numpy(tensor: Tensor, *_: Any, force: bool = False, **__: Any) -> None:
    # torch/csrc/utils/tensor_numpy.cpp, tensor_to_numpy
    if gpu_of(tensor) is not None and not force:
        raise TypeError(
            f"can't convert {place(tensor)} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )


class NoMemory(NotSimulated, AttributeError):
    """Error for passing the memory of a tensor on a simulated GPU to another library."""


@_rule("Tensor.__cuda_array_interface__.__get__", always=True)
def _cuda_array_interface(tensor: Tensor, *_: Any) -> None:
    if gpu_of(tensor) is not None:
        raise wrong(
            NoMemory,
            en=f"other libraries cannot use the memory of a tensor on {place(tensor)}, a GPU simulated by labkit: "
            "use .cpu() first",
            zh=f"{place(tensor)} 是 labkit 模拟的 GPU，别的库不能使用它上面张量的显存：请先用 .cpu()",
        )


@_rule("Tensor.pin_memory")
def _pin_memory(tensor: Tensor, *_: Any, **__: Any) -> None:
    # aten/src/ATen/native/Memory.cpp, _pin_memory
    gpu = gpu_of(tensor)
    if gpu is not None or tensor.device.type != "cpu":
        name = type_in_errors(tensor)
        if gpu is None:
            name = f"Meta{name.rpartition('.')[2].removesuffix('Tensor')}Type"
        raise RuntimeError(f"cannot pin '{name}' only dense CPU tensors can be pinned")


def check_alias(tensor: Tensor, gpu: Gpu | None, copy: bool | None) -> None:
    """Raise the error of ``torch.asarray`` for ``copy=False`` with a tensor on another device."""
    # torch/csrc/utils/tensor_new.cpp, asarray
    if copy is False:
        raise ValueError(f"can't alias tensor from device '{place(tensor)}' to '{name_of(gpu)}'.")


def check_new_pinned(gpu: Gpu | None) -> None:
    """Raise the error of functions that make a tensor for ``pin_memory=True`` on ``gpu``."""
    # torch/csrc/utils/tensor_new.cpp, internal_new_from_data, and at::empty's own
    if gpu is not None:
        raise RuntimeError("Only dense CPU tensors can be pinned")
