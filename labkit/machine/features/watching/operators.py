"""The operators that CUDA computes in no fixed order, and those for which the host waits.

Facts of ``aten/src/ATen/native/cuda`` (2.12): the calls of ``alertNotDeterministic``, and what copies a number to the
host (``item``, ``memcpy_and_sync``). The CPU tells of its own share (``put_``, ``max_unpool``) in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from ....base.files import rows_beside
from ...state.placement import gpu_of

_ROWS = {kind: names.split() for kind, names in rows_beside(__file__)}
# The operators to which CUDA always objects, with what it adds to their names.
_UNORDERED = {
    name: f"{name.strip('_')}_{added}" for added in ("cuda", "out_cuda", "gpu") for name in _ROWS[added]
}
# These object to some calls only. Each function is given the overload's name and the arguments by name.
_SOMETIMES: dict[str, tuple[str, Callable[[str, dict[str, Any]], bool]]] = {
    "histc": ("_histc_cuda with floating point input", lambda _, given: given["self"].is_floating_point()),
    "bincount": ("_bincount_cuda", lambda _, given: given.get("weights") is not None),
    "put_": ("put_", lambda _, given: bool(given.get("accumulate"))),
    "put": ("put_", lambda _, given: bool(given.get("accumulate"))),
    "median": ("median CUDA with indices output", lambda overload, _: overload.startswith("dim")),
    "nanmedian": ("median CUDA with indices output", lambda overload, _: overload.startswith("dim")),
    "nll_loss2d_forward": ("nll_loss2d_forward_out_cuda_template", lambda _, given: given["reduction"] != 0),
    "scatter_reduce": ("scatter_reduce_cuda_prod_", lambda _, given: given["reduce"] == "prod"),
    "scatter_reduce_": ("scatter_reduce_cuda_prod_", lambda _, given: given["reduce"] == "prod"),
    "scatter": ("scatter_reduce_cuda_kernel", lambda _, given: _scatters_with(given)),
    "scatter_": ("scatter_reduce_cuda_kernel", lambda _, given: _scatters_with(given)),
    "_embedding_bag_backward": ("embedding_bag_backward_cuda_max", lambda _, given: given["mode"] == 2),
    "_embedding_bag_dense_backward": ("embedding_bag_backward_cuda_max", lambda _, given: given["mode"] == 2),
}


def _scatters_with(given: dict[str, Any]) -> bool:
    # TensorAdvancedIndexing.cpp, scatter_impl: a sum of floats goes by index_put, which has an order.
    reduce, source = given.get("reduce"), given.get("src")
    if reduce is None or not isinstance(source, Tensor):
        return False
    return reduce == "multiply" or not (given["self"].is_floating_point() or given["self"].is_complex())


def unordered(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The name by which CUDA objects to this OpOverload when it is to be deterministic; None if it does not."""
    name = func.overloadpacket.__name__
    always = _UNORDERED.get(name)
    if always is not None or name not in _SOMETIMES:
        return always
    text, objects = _SOMETIMES[name]
    given = {a.name: args[at] for at, a in enumerate(func._schema.arguments) if at < len(args)} | kwargs
    return text if objects(func._overloadname, given) else None


def objection(caller: str, warn_only: bool) -> str:
    """PyTorch's words (``aten/src/ATen/Context.cpp``, ``alertNotDeterministic``)."""
    if warn_only:
        return (
            f"{caller} does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue at "
            "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this "
            "operation."
        )
    return (
        f"{caller} does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or you can "
        "use the 'warn_only=True' option, if that's acceptable for your application. You can also file an issue at "
        "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this "
        "operation."
    )


_MASKS = (torch.bool, torch.uint8)


def waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_host: Collection[int]) -> bool:
    """Whether the host waits for the GPU in this operator (an OpOverload).

    on_host    the ids of the caller's tensors that are not on a GPU: to read from them is no waiting
    """
    if args and id(args[0]) in on_host:
        return False
    name = func.overloadpacket.__name__
    if name in _ROWS["waits"]:  # the host reads a number of results, a shape or a decision
        return True
    if name in _ROWS["indexes"]:
        # A mask is turned into indices, as many as it has truths, but for one value of the host's; indices are
        # copied to the GPU, those from a mask without waiting (TensorAdvancedIndexing.cpp, canDispatchToMaskedFill;
        # IndexingUtils.h, expandTensors).
        indices = args[1] if len(args) > 1 else kwargs.get("indices", ())
        value = args[2] if len(args) > 2 else None
        masks = [isinstance(index, Tensor) and index.dtype in _MASKS for index in indices]
        if isinstance(value, Tensor) and value.numel() == 1 and gpu_of(value) is None:
            return False
        return any(mask and id(index) not in on_host for mask, index in zip(masks, indices, strict=True))
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in ("masked_fill", "masked_fill_") and func._overloadname == "Tensor"
