"""The checks that functions made of several operators do themselves, before they reach an operator.

PyTorch writes them by hand, each with its own words; here they stand by the function's name.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..state.placement import gpu_of, tensors_in, type_name

# The name of a function -> check(args, kwargs), which raises as the function does on the real machine.
_CHECKS: dict[str, Callable[[tuple, dict], None]] = {}


def check_composite(func, args: tuple, kwargs: dict) -> None:
    """Raise what ``func`` itself raises for tensors that are where these are."""
    check = _CHECKS.get(getattr(func, "__name__", ""))
    if check is not None:
        check(args, kwargs)


def place(tensor: Tensor) -> str:
    """The device of ``tensor`` as messages write it: ``"cuda:1"``, ``"cpu"``."""
    gpu = gpu_of(tensor)
    return str(tensor.device) if gpu is None else str(gpu.device)


def _checks(*names: str) -> Callable:
    def register(check: Callable) -> Callable:
        _CHECKS.update((name, check) for name in names)
        return check

    return register


@_checks(*(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)))
def _convolution(args, kwargs):
    for label, other in zip(("weight", "bias"), args[1:3], strict=False):
        if isinstance(other, Tensor) and (gpu_of(other) is None) != (gpu_of(args[0]) is None):
            mine, theirs = type_name(args[0]), type_name(other)
            raise RuntimeError(f"Input type ({mine}) and {label} type ({theirs}) should be the same")


@_checks("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(args, kwargs):
    data, rest = args[0], list(args[1:])
    packed = (
        rest
        and isinstance(rest[0], Tensor)
        and isinstance(rest[1], (tuple, list, Tensor))
        and (len(rest) > 2 and isinstance(rest[2], (tuple, list)))
    )
    if packed and rest[0].dim() == 1:
        rest = rest[1:]
    hidden, weights = tensors_in(rest[0]), tensors_in(rest[1])
    for label, group in (("hidden", hidden), ("parameter", weights)):
        for tensor in group:
            if gpu_of(tensor) is not gpu_of(data):
                raise RuntimeError(
                    f"Input and {label} tensors are not at the same device, found input tensor at "
                    f"{place(data)} and {label} tensor at {place(tensor)}"
                )


@_checks("scaled_dot_product_attention")
def _attention(args, kwargs):
    query, key, value = (
        args[at] if at < len(args) else kwargs[name] for at, name in enumerate(("query", "key", "value"))
    )
    if gpu_of(query) is not gpu_of(key) or gpu_of(query) is not gpu_of(value):
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{place(query)} key.device: {place(key)} and value.device: {place(value)} instead."
        )


@_checks("meshgrid", "cartesian_prod")
def _meshgrid(args, kwargs):
    if len({gpu_of(tensor) for tensor in tensors_in(args)}) > 1:
        raise RuntimeError("torch.meshgrid expects all tensors to have the same device")


@_checks("block_diag")
def _block_diag(args, kwargs):
    first, *others = tensors_in(args)
    for at, other in enumerate(others, start=1):
        if gpu_of(other) is not gpu_of(first):
            raise RuntimeError(
                "torch.block_diag: input tensors must all be on the same device. "
                f"Input 0 is on device {place(first)} and input {at} is on device {place(other)}"
            )


@_checks("quantile", "nanquantile")
def _quantile(args, kwargs):
    wanted = args[1] if len(args) > 1 else kwargs.get("q")
    if isinstance(wanted, Tensor) and gpu_of(wanted) is not gpu_of(args[0]):
        raise RuntimeError("quantile() q tensor must be on the same device as the input tensor")


@_checks("stft", "istft")
def _windowed(args, kwargs):
    window = args[4] if len(args) > 4 else kwargs.get("window")
    if isinstance(window, Tensor) and gpu_of(window) is not gpu_of(args[0]):
        name = "istft" if args[0].is_complex() else "stft"
        raise RuntimeError(
            f"{name} input and window must be on the same device but got self on {place(args[0])} "
            f"and window on {place(window)}"
        )
