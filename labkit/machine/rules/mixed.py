"""What happens when one operation is given tensors on several devices: the errors CUDA raises.

A call that mixes devices is replayed under a dispatch mode that sees each ATen operator and checks it as
its CUDA wrapper would (see :mod:`.device_checks`), in both forms of PyTorch's message. What CUDA allows (a
0-dim CPU tensor in an elementwise operation, CPU indices, copies) goes through. Only mixed calls pay.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..state.gpu import Gpu
from ..state.placement import gpu_of, put_all, tensors_in
from .composite import check_composite, place
from .operators import device_check

aten = torch.ops.aten
_COPIES = {
    aten.copy_.default,
    aten._copy_from.default,
    aten.set_.source_Tensor,
    aten.set_.source_Storage,
    aten._has_compatible_shallow_copy_type.default,
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}


def run_mixed(mode, func, args, kwargs, tensors: list[Tensor]):
    """Call ``func`` whose tensor arguments are on several devices, as the real machine would."""
    check_composite(func, args, kwargs)
    with _Replay(gpu_of(tensors[0])):
        return func(*args, **kwargs)


class _Replay(TorchDispatchMode):
    """Checks and places the operators of one call.

    home    where the call is at work: tensors that are made from nothing are made there.
    """

    def __init__(self, home: Gpu | None) -> None:
        super().__init__()
        self._home = home

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func.overloadpacket.__name__.startswith("_foreach_"):
            homes = _check_lists(func, args, kwargs)
            result = func(*args, **kwargs)
            for made, home in zip(result or (), homes, strict=False):
                if home is not None:
                    put_all(made, home)
            return result
        # A change of dtype or layout inside a composite function stays where its input is.
        if func in _COPIES:
            home = None
        elif tensors_in(args, kwargs):
            home = check_operator(func, args, kwargs)
            self._home = home or self._home
        else:
            # Such as torch.full(..., x.options()): the options lost which GPU they were of.
            home = self._home
        result = func(*args, **kwargs)
        if home is not None:
            put_all(result, home)
        return result


def _is_composite(func) -> bool:
    """Whether ``func`` is made of other operators, each of which is checked by itself."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def check_operator(func, args: tuple, kwargs: dict) -> Gpu | None:
    """Raise as CUDA does if ``func`` cannot take tensors from where these are; else the GPU it runs on."""
    name = func.overloadpacket.__name__
    named = _named_tensors(func, args, kwargs)
    gpus = {gpu_of(tensor) for _, tensor in named}
    if len(gpus) <= 1:
        return gpus.pop() if gpus else None
    if name in _INDEXING:
        return _check_indexing(named)
    if name in _OWN_RULES:
        return _OWN_RULES[name](dict(named))
    check, renamed = device_check(func._schema.name.removeprefix("aten::") + _overload(func))
    if check.wrapper is not None:
        common = named[0][1]
        for argument, tensor in named:
            if gpu_of(tensor) is not gpu_of(common):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but got "
                    f"{renamed.get(argument, argument)} is on {place(tensor)}, different from other tensors "
                    f"on {place(common)} (when checking argument in method {check.wrapper})"
                )
    return _check_iterator(named, _written(func), scalars=check.iterator)


def _check_iterator(named, written: set[str], scalars: bool) -> Gpu:
    """TensorIterator's rule: the first GPU is common; only a 0-dim CPU input may be elsewhere."""
    common = next(tensor for _, tensor in named if gpu_of(tensor) is not None)
    for argument, tensor in named:
        if gpu_of(tensor) is gpu_of(common):
            continue
        if scalars and argument not in written and tensor.dim() == 0 and gpu_of(tensor) is None:
            continue
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{place(common)} and {place(tensor)}!"
        )
    return gpu_of(common)


def _check_indexing(named) -> Gpu | None:
    (_, tensor), *others = named
    home = gpu_of(tensor)
    for argument, other in others:
        at = gpu_of(other)
        if argument == "indices":
            if at is not None and at is not home:
                raise RuntimeError(
                    "indices should be either on cpu or on the same device as the indexed tensor "
                    f"({place(tensor)})"
                )
        elif at is not home and other.dim():  # a single value is brought over, from wherever it is
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{place(tensor)} and {place(other)}!"
            )
    return home


def _check_lists(func, args: tuple, kwargs: dict) -> list[Gpu | None]:
    """Check an operation on lists, entry by entry, as the single operations; where each one runs."""
    values = [*args, *kwargs.values()]
    lists = [list(v) for v in values if isinstance(v, (list, tuple)) and v and isinstance(v[0], Tensor)]
    single = [v for v in values if isinstance(v, Tensor)]
    homes = []
    for entry in zip(*lists, strict=False):
        homes.append(gpu_of(entry[0]))
        if func.overloadpacket.__name__ != "_foreach_copy_":
            named = [("self", entry[0]), *(("other", tensor) for tensor in (*entry[1:], *single))]
            if len({gpu_of(tensor) for _, tensor in named}) > 1:
                written = _written(func) & {"self"}
                homes[-1] = _check_iterator(named, written, scalars=True)
    return homes


def _fill(named: dict[str, Tensor]) -> Gpu | None:
    return gpu_of(named["self"])  # the value is read on the host, wherever it is


def _masked_fill(named: dict[str, Tensor]) -> Gpu | None:
    tensor, mask = named["self"], named["mask"]
    if gpu_of(mask) is not gpu_of(tensor):
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {place(mask)} "
            f"and self on {place(tensor)}"
        )
    if gpu_of(tensor) is None:
        raise RuntimeError("masked_fill_: Expected inputs to be on same device")
    return gpu_of(tensor)


def _mv(named: dict[str, Tensor]) -> Gpu | None:
    # It makes its result beside the vector, then adds the product to that.
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but got mat is on {place(named['self'])}, different "
        f"from other tensors on {place(named['vec'])} (when checking argument in method wrapper_CUDA_addmv_)"
    )


_OWN_RULES = {
    "fill": _fill, "fill_": _fill, "masked_fill": _masked_fill, "masked_fill_": _masked_fill, "mv": _mv,
}  # fmt: skip


def _written(func) -> set[str]:
    """The names of the arguments that ``func`` writes: ``out``, and ``self`` of an operation in place."""
    arguments = (a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return {"out" if argument.is_out else argument.name for argument in arguments}


def _named_tensors(func, args, kwargs) -> list[tuple[str, Tensor]]:
    """The tensors of a call with their arguments' names: what is written first, then by position."""
    schema = func._schema.arguments
    named, written = [], []
    for at, argument in enumerate(schema):
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        found = [(argument.name, tensor) for tensor in tensors_in(value)]
        if argument.alias_info is not None and argument.alias_info.is_write and argument.is_out:
            written += [("out", tensor) for _, tensor in found]
        else:
            named += found
    return written + named


def _overload(func) -> str:
    return "" if func._overloadname == "default" else f".{func._overloadname}"
