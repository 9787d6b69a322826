"""Every private name of torch that labkit rests on: why, since when, and a probe that it still is what it was.

What stands in nobody's documentation may change with any release. ``python -m labkit.base.torch_private`` says what
moved in the torch that is installed; it needs no more of labkit than this file. Rooms use the names where they
need them, and a test finds every one that is not listed here. What is replaced only while a machine is in use stands
in :mod:`labkit.machine.torch_api.table` too.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from .patches import Patch, Patches

# The releases on which the tests of the machine, the engine and the probes below were run. 2.13 is the pinned one,
# on which everything is tested; the others were their CUDA builds, on a computer without a GPU.
TRIED = ("2.12", "2.13", "2.14", "2.15")


def is_tried(version: str) -> bool:
    """Whether ``version`` (such as "2.13.0+cpu") is of a release in :data:`TRIED`."""
    return ".".join(version.split(".")[:2]) in TRIED


@cache
def warn_if_untried(version: str) -> None:
    """One line, once, on a release that was not tried."""
    if not is_tried(version):
        warnings.warn(f"labkit was run on PyTorch {', '.join(TRIED)}, not on {version}", stacklevel=3)


@dataclass(frozen=True)
class Private:
    """Names that belong together.

    names   as ``torch.somewhere._name``; what a rule goes by that is no name, in words.
    why     what labkit does with them, and where.
    probe   whether they do what labkit rests on; raising counts as no.
    since   the first release of which this is known (labkit looked at none before 2.12).
    """

    names: tuple[str, ...]
    why: str
    probe: Callable[[], bool]
    since: str = "2.12"

    def moved(self) -> str | None:
        """What is no longer as it was; None if everything is. Runs on a thread of its own, whose modes it may use."""
        found: list[str | None] = []

        def run() -> None:
            try:
                found.append(None if self.probe() else "is there and does something else")
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0]


PRIVATE: list[Private] = []


def _names(*names: str, why: str, since: str = "2.12") -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    def register(probe: Callable[[], bool]) -> Callable[[], bool]:
        PRIVATE.append(Private(names, why, probe, since))
        return probe

    return register


def _mentions(function: Any, *names: str) -> bool:
    """That ``function`` looks these names up, in whatever room, when it is called."""
    missing = set(names) - set(inspect.unwrap(function).__code__.co_names)
    if missing:
        raise LookupError(f"{function.__qualname__} does not use {', '.join(sorted(missing))} any more")
    return True


def _asks(function: Any, *names: str) -> bool:
    """That ``function`` looks these names up in its own module: what is put in their place there will be found."""
    missing = set(names) - set(inspect.unwrap(function).__globals__)
    if missing:
        raise LookupError(f"{function.__module__} has no {', '.join(sorted(missing))} any more")
    return _mentions(function, *names)


class _Seen(TorchFunctionMode):
    """Notes the functions that pass."""

    def __init__(self) -> None:
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


class _Doubled(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * 2


# Tensors, storages, and the modes that see them.


@_names(
    "attributes of torch.UntypedStorage",
    why="the mark that says which GPU a storage is on (machine.state.gpu)",
)
def _storage_keeps_its_object() -> bool:
    x = torch.ones(4)
    x.untyped_storage()._labkit_probe = marked = object()
    return all(
        t.untyped_storage()._labkit_probe is marked
        for t in (x[1:], x.detach(), x.view(2, 2), nn.Parameter(x))
    )


@_names(
    "torch._C.StorageBase.device",
    why="the real device, while the property stands for the GPU (machine.ops.storages)",
)
def _device_of_a_storage() -> bool:
    getter = torch._C.StorageBase.device.__get__
    return getter(torch.ones(1).untyped_storage()) == torch.device("cpu")


@_names(
    "torch._C._len_torch_function_stack", "torch._C._get_function_stack_at",
    "torch._C._push_on_torch_function_stack", "torch._C._pop_torch_function_stack",
    why="the machine's mode goes below the modes that are there, and out from among them (machine.stack)",
)  # fmt: skip
def _stack_of_modes() -> bool:
    mode, below = _Seen(), torch._C._len_torch_function_stack()
    torch._C._push_on_torch_function_stack(mode)
    there = torch._C._len_torch_function_stack(), torch._C._get_function_stack_at(below)
    return there == (below + 1, mode) and torch._C._pop_torch_function_stack() is mode


@_names(
    "torch._GLOBAL_DEVICE_CONTEXT", "torch.utils._device",
    why="the mode of set_default_device, which torch looks for at the bottom (machine.stack, machine.ops.moves)",
)  # fmt: skip
def _default_device() -> bool:
    torch.set_default_device("meta")
    context = torch._GLOBAL_DEVICE_CONTEXT.device_context
    kind = torch.utils._device.DeviceContext
    right = (
        isinstance(context, kind)
        and context.device.type == "meta"
        and torch._C._get_function_stack_at(0) is context
    )
    torch.set_default_device(None)
    return right and torch._C._len_torch_function_stack() == 0


@_names(
    "torch.utils._device._device_constructors",
    why="the functions that make a tensor on device= (machine.ops.moves)",
)
def _constructors() -> bool:
    found = torch.utils._device._device_constructors()
    return {torch.empty, torch.tensor, torch.as_tensor, torch.arange, torch.rand, torch.full} <= set(found)


@_names(
    "functions as modes see them",
    why="handlers are found by function, rules by __name__ (machine.ops, machine.rules)",
)
def _functions_that_modes_see() -> bool:
    x = torch.ones(1, 1, 3)
    with _Seen() as seen:
        nn.functional.softmax(x, 1)
        nn.functional.conv1d(x, x)
        _ = x.shape, x + x, x.grad, 2 / x
    found = [*seen.functions]
    names = [function.__name__ for function in found]
    return (
        {"softmax", "conv1d", "__rdiv__"} <= set(names) | {"__rdiv__" if "__rtruediv__" in names else ""}
        and {Tensor.shape.__get__, Tensor.grad.__get__, Tensor.add} <= set(found)
        and hash(Tensor.grad.__get__) == hash(Tensor.grad.__get__)
    )


@_names(
    "torch._C.DisableTorchFunction", "torch._C.DisableTorchFunctionSubclass",
    why="the first switches modes off too, the second subclasses only (collectives; machine.ops.mode)",
)  # fmt: skip
def _switches() -> bool:
    with _Seen() as seen:
        with torch._C.DisableTorchFunction():
            torch.ones(1)
        with torch._C.DisableTorchFunctionSubclass():
            torch.zeros(1)
    return seen.functions == [torch.zeros]


@_names(
    "torch._C._functorch",
    why="what vmap and grad wrap is looked through to its storage (machine.state.placement)",
)
def _functorch_wrappers() -> bool:
    inside: list[bool] = []

    def look(x: Tensor) -> Tensor:
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(x)
        inside.append(wrapped and torch._C._functorch.get_unwrapped(x).shape == (2, 3))
        return x

    torch.vmap(look)(torch.ones(2, 3))
    return inside == [True]


@_names(
    "torch.Tensor._values",
    "torch.Tensor._indices",
    why="sparse tensors: two storages (machine.state.placement)",
)
def _sparse() -> bool:
    x = torch.ones(2).to_sparse()
    return x._values().tolist() == [1, 1] and x._indices().tolist() == [[0, 1]]


@_names(
    "torch.Tensor._version",
    "torch.Tensor._is_view",
    why="inputs written in place (diagnosis); harmless questions (mode)",
)
def _versions() -> bool:
    x = torch.ones(2)
    before = x._version
    x[:1].add_(1)
    return x._version == before + 1 and x[:1]._is_view() and not x._is_view()


@_names("torch._tensor_str._str", why="torch's own printing, with the machine in sight (machine.ops.mode)")
def _printing() -> bool:
    return torch._tensor_str._str(torch.ones(2)) == "tensor([1., 1.])"


@_names("torch._C._nn._parse_to", why="Module.to reads its arguments with it (machine.ops.moves)")
def _arguments_of_to() -> bool:
    return torch._C._nn._parse_to("cpu", torch.float64) == (torch.device("cpu"), torch.float64, False, None)


@_names(
    "torch._C._nn.flatten_dense_tensors",
    "torch._utils._flatten_dense_tensors", "torch._utils._unflatten_dense_tensors",
    why="tensors that travel together (collectives, engine.replicate); two are one, the third is the way back",
)  # fmt: skip
def _flat_and_back() -> bool:
    x, y = torch.ones(2, 2), torch.zeros(3)
    flat = torch._utils._flatten_dense_tensors([x, y])
    pieces = torch._utils._unflatten_dense_tensors(flat, [x, y])
    views = all(piece.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for piece in pieces)
    same = torch.equal(torch._C._nn.flatten_dense_tensors([x, y]), flat)
    return same and views and [piece.shape for piece in pieces] == [x.shape, y.shape]


@_names(
    "torch._VF._pack_padded_sequence",
    "torch._VF._pad_packed_sequence",
    why="lengths on the host (machine.rules)",
)
def _packed_sequences() -> bool:
    with _Seen() as seen:
        packed = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 1, 2), torch.tensor([3]))
        nn.utils.rnn.pad_packed_sequence(packed)
    return {torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence} <= set(seen.functions)


@_names(
    "torch._standard_gamma",
    "torch._sample_dirichlet",
    why="draw, and take no generator from modules (random)",
)
def _distributions() -> bool:
    with _Seen() as seen:
        torch.distributions.Gamma(torch.ones(1), torch.ones(1)).sample()
        torch._sample_dirichlet(torch.ones(2))
    return {torch._standard_gamma, torch._sample_dirichlet} <= set(seen.functions)


@_names(
    "torch._C.ScriptFunction",
    "torch._C.ScriptMethod",
    why="what scripted code returns is placed (machine.ops.scripts)",
)
def _scripts() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(torch.neg, torch.ones(1))
        module = torch.jit.trace(nn.Linear(1, 1), torch.ones(1))
    return type(traced) is torch._C.ScriptFunction and type(module.forward) is torch._C.ScriptMethod


@_names("torch._C._set_default_tensor_type", why="torch.set_default_tensor_type calls it (machine.ops.types)")
def _default_type() -> bool:
    return _mentions(torch.set_default_tensor_type, "_set_default_tensor_type") and callable(
        torch._C._set_default_tensor_type
    )


@_names("torch._C.Generator", why="the class, under its second name (machine.state.random)")
def _generators() -> bool:
    class Other(torch.Generator):  # can be subclassed, and carries attributes
        pass

    other = Other("cpu")
    other.labkit = 1
    return torch._C.Generator is torch.Generator and other.manual_seed(1) is other


# Operators and their rules.


@_names(
    "torch.utils._python_dispatch.TorchDispatchMode",
    why="a mixed call is replayed operator by operator (rules.mixed)",
)
def _dispatch_mode() -> bool:
    found: list[str] = []

    class Notes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(func.name())
            return func(*args, **(kwargs or {}))

    with Notes():
        torch.ones(1).add_(1)
    return found == ["aten::ones", "aten::add_.Tensor"]


@_names(
    "torch._ops.OpOverload._schema", "torch._ops.OpOverload._overloadname",
    why="which argument an operator writes, and its entry in the operator table (machine.rules.mixed)",
)  # fmt: skip
def _schemas() -> bool:
    op = torch.ops.aten.add.out
    first, *_, out = op._schema.arguments
    names = op._schema.name, op._overloadname, op.overloadpacket.__name__
    return (
        names == ("aten::add", "out", "add")
        and out.is_out
        and out.alias_info.is_write
        and first.alias_info is None
    )


@_names(
    "torch._C._dispatch_has_kernel_for_dispatch_key",
    why="whether an operator is made of others (machine.rules.mixed)",
)
def _composite() -> bool:
    asked = torch._C._dispatch_has_kernel_for_dispatch_key
    return [asked(f"aten::{name}", "CompositeImplicitAutograd") for name in ("linear", "mm")] == [True, False]


@_names(
    "torch.ops.aten._copy_from", "torch.ops.aten._has_compatible_shallow_copy_type", "torch.ops.aten._unsafe_index",
    "torch.ops.aten._index_put_impl_", "torch.ops.aten._unsafe_index_put", "torch.ops.aten._foreach_copy_",
    "torch.ops.aten._native_batch_norm_legit",
    why="operators with rules of their own (machine.rules)",
)  # fmt: skip
def _operators() -> bool:
    aten = torch.ops.aten
    packets = (
        aten._copy_from, aten._has_compatible_shallow_copy_type, aten._unsafe_index, aten._index_put_impl_,
        aten._unsafe_index_put, aten._foreach_copy_, aten._native_batch_norm_legit,
    )  # fmt: skip
    return all(packet.overloads() for packet in packets)


@_names(
    "torchgen/packaged/ATen/native/native_functions.yaml",
    why="how each operator checks devices (machine.rules.operators)",
)
def _operator_table() -> bool:
    text = files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml").read_text("utf-8")
    entries = dict(part.split("(", 1) for part in text.split("\n- func: ")[1:])
    return (
        len(entries) > 2000
        and "\n  structured_delegate: mm.out" in entries["mm"]
        and "\n  structured: True" in entries["add.out"]
        and "(a!) out)" in entries["add.out"].split("->")[0]
        and "\n  device_check: NoCheck" in entries["add.Tensor"]
        and "\n    CUDA: " in entries["nonzero"]
    )


# Autograd.


@_names(
    "torch.autograd._engine_run_backward",
    why="backward and grad start the engine by this name (machine.ops.gradients)",
)
def _engine() -> bool:
    calls: list[tuple[Any, ...]] = []
    real = torch.autograd._engine_run_backward

    def noted(
        outputs: Any, grads: Any, keep: Any, create: Any, inputs: Any, *rest: Any, **options: Any
    ) -> Any:
        calls.append((outputs, inputs))
        return real(outputs, grads, keep, create, inputs, *rest, **options)

    x = torch.ones(2, requires_grad=True)
    y, z = x.sum(), x.sum()
    with Patches(lambda: [Patch(torch.autograd, "_engine_run_backward", noted)]):
        y.backward()
        torch.autograd.grad(z, x)
    return [(len(o), o[0] is t, len(i)) for (o, i), t in zip(calls, (y, z), strict=True)] == [
        (1, True, 0),
        (1, True, 1),
    ]


@_names(
    "torch.autograd.function.BackwardCFunction", "torch.autograd.Function.apply",
    why="a Function's node carries where its outputs were, and its apply gets the gradients (machine.ops.gradients); "
    "Function.apply is a classmethod of Python up to 2.13 and one of C from 2.14 on",
)  # fmt: skip
def _functions() -> bool:
    kind = torch.autograd.function.BackwardCFunction
    forward = inspect.getattr_static(Function, "apply").__get__(None, _Doubled)
    node = forward(torch.ones(1, requires_grad=True)).grad_fn
    node._labkit_probe = 1
    return isinstance(node, kind) and _Doubled._backward_cls.apply is kind.apply


@_names(
    "torch.utils.hooks.BackwardHook",
    why="module hooks see gradients on the GPU of the module's tensors (gradients)",
)
def _module_hooks() -> bool:
    kind = torch.utils.hooks.BackwardHook
    given = [
        list(inspect.signature(f).parameters)
        for f in (kind.__init__, kind.setup_input_hook, kind.setup_output_hook)
    ]
    module, called = nn.Linear(1, 1), []
    module.register_full_backward_hook(lambda *_: called.append(1))
    module(torch.ones(1, requires_grad=True)).backward()
    return called == [1] and given == [
        ["self", "module", "user_hooks", "user_pre_hooks"],
        ["self", "args"],
        ["self", "args"],
    ]


@_names(
    "torch.autograd.graph.Node._input_metadata", why="in which types a model computes (diagnosis.compare)"
)
def _nodes() -> bool:
    x = torch.ones(1, dtype=torch.float64, requires_grad=True) * 2
    return [one.dtype for one in x.grad_fn._input_metadata] == [torch.float64]


@_names(
    "torch._C._ExcludeDispatchKeyGuard",
    why="autograd's tracking, off as in C++ (machine.torch_api.collectives)",
)
def _below_autograd() -> bool:
    x, keys = torch.ones(2, requires_grad=True), torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch.no_grad(), torch._C._ExcludeDispatchKeyGuard(keys):
        made = x[:1]
    return made._base is None and x[:1]._base is x


# Modules and torch.nn.parallel.


@_names(
    "torch.nn.Module._parameters", "torch.nn.Module._buffers", "torch.nn.Module._modules",
    "torch.nn.Module._forward_pre_hooks", "attributes that begin with _forward_", "torch.nn.Module._is_replica",
    "torch.nn.Module._replicate_for_data_parallel", "torch.nn.Module._former_parameters",
    why="what a replica is made of and known by (engine.replicate, lost, hints; trace.recording; diagnosis)",
)  # fmt: skip
def _replicas() -> bool:
    module = nn.Sequential(nn.BatchNorm1d(2))
    norm = module[0]
    there = [list(d)[:2] for d in (module._modules, norm._parameters, norm._buffers)]
    replica = norm._replicate_for_data_parallel()
    forgotten = getattr(replica, "_is_replica", False) and not list(replica.parameters())
    hooks = {"_forward_hooks", "_forward_pre_hooks"} <= vars(norm).keys()
    theirs = _mentions(sys.modules["torch.nn.parallel.replicate"].replicate, "_former_parameters")
    return bool(
        there == [["0"], ["weight", "bias"], ["running_mean", "running_var"]]
        and forgotten
        and hooks
        and theirs
    )


@_names("torch.nn.modules.batchnorm._BatchNorm", why="layers that take statistics over the batch (diagnosis)")
def _batch_norms() -> bool:
    base = torch.nn.modules.batchnorm._BatchNorm
    return all(
        issubclass(kind, base) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    )


@_names(
    "parameters called name_orig and name_g",
    why="weights that hooks or parametrizations make anew (diagnosis.state)",
)
def _reparametrized() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spectral, weight = nn.utils.spectral_norm(nn.Linear(2, 2)), nn.utils.weight_norm(nn.Linear(2, 2))
    return "weight_orig" in spectral._parameters and "weight_g" in weight._parameters


@_names(
    "torch._dynamo.eval_frame.OptimizedModule._orig_mod", why="the module inside a compiled one (diagnosis)"
)
def _compiled() -> bool:  # read, not imported: torch._dynamo takes seconds
    return 'self._modules["_orig_mod"]' in files("torch").joinpath("_dynamo/eval_frame.py").read_text("utf-8")


@_names(
    "torch.nn.parallel._functions", "torch.nn.parallel._functions._streams",
    why="what PyTorch's scatter, gather and broadcast are when they are recorded; its copy streams (machine.torch_api)",
)  # fmt: skip
def _parallel_functions() -> bool:
    room = torch.nn.parallel._functions
    kinds = (room.Broadcast, room.Scatter, room.Gather)
    return all(isinstance(vars(kind)["backward"], staticmethod) for kind in kinds) and _asks(
        room._get_stream, "_streams"
    )


# torch.cuda's own names for what it asks C++, in the place of which the machine puts its answers.


@_names(
    "torch.cuda._exchange_device", "torch.cuda._maybe_exchange_device", "torch.cuda._get_device_properties",
    "torch.cuda._cudart", "torch.cuda._initialized", "torch.cuda._is_in_bad_fork", "torch.cuda._cached_device_count",
    "torch.cuda._device_count_nvml", "torch._C._has_cuda",
    why="torch.cuda's Python code asks them at each call (machine.torch_api.cuda, .processes)",
)  # fmt: skip
def _cuda_asks() -> bool:
    cuda = torch.cuda
    return (
        _asks(cuda.device.__enter__, "_exchange_device")
        and _asks(cuda.device.__exit__, "_maybe_exchange_device")
        and _mentions(cuda.get_device_properties, "_get_device_properties")
        and _asks(cuda.is_initialized, "_initialized", "_is_in_bad_fork")
        and _asks(cuda.device_count, "_cached_device_count", "_device_count_nvml")
        and _asks(cuda.cudart, "_cudart")
        and _mentions(torch.backends.cuda.is_built, "_has_cuda")
        and isinstance(torch._C._has_cuda, bool)
    )


@_names(
    "torch.cuda.graphs._cuda_isCurrentStreamCapturing", "torch.cuda.graphs._graph_pool_handle",
    "the bases _CUDAGraph, _MemPool and _CudaStreamBase of torch.cuda's classes",
    why="optimizers ask the first; the others are refused by name (machine.torch_api.cuda, .refused)",
)  # fmt: skip
def _graphs() -> bool:
    graphs = torch.cuda.graphs
    bases = {
        base.__name__
        for kind in (graphs.CUDAGraph, torch.cuda.MemPool, torch.cuda.Stream)
        for base in kind.__mro__
    }
    return (
        _asks(graphs.is_current_stream_capturing, "_cuda_isCurrentStreamCapturing")
        and _asks(graphs.graph_pool_handle, "_graph_pool_handle")
        and {"_CUDAGraph", "_MemPool", "_CudaStreamBase"} <= bases
    )


@_names(
    "torch._C._cuda_*, _nccl_*, _accelerator_*, _get_accelerator, _group_tensors_by_device_and_dtype, _broadcast*, "
    "_scatter*, _gather*", "torch._C._cudnn_*", "torch._C._cublas*", "_CudaDeviceProperties, printed only",
    why="the functions in C++ that the machine answers or refuses by name (python -m labkit.machine lists them)",
)  # fmt: skip
def _answered() -> bool:
    comm, foreach = sys.modules["torch.nn.parallel.comm"], torch.utils._foreach_utils
    return (
        _mentions(torch.cuda.current_device, "_cuda_getDevice")
        and _mentions(torch.accelerator.current_device_index, "_accelerator_getDeviceIndex")
        and _mentions(comm.scatter, "_scatter")
        and _mentions(comm.gather, "_gather")
        and _mentions(comm.broadcast_coalesced, "_broadcast_coalesced")
        and _mentions(foreach._group_tensors_by_device_and_dtype, "_group_tensors_by_device_and_dtype")
    )


@_names("torch.utils._foreach_utils", why="where optimizers group tensors by device (machine.torch_api.cuda)")
def _foreach() -> bool:
    x = torch.ones(1)
    ((key, (lists, _)),) = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([[x]]).items()
    return key == (x.device, x.dtype) and lists[0][0] is x


@_names("torch.cuda.nvtx._nvtx", why="ranges that nobody times (machine.torch_api.profiling)")
def _ranges() -> bool:
    return _asks(torch.cuda.nvtx.range_push, "_nvtx") and _asks(torch.cuda.nvtx.range_pop, "_nvtx")


@_names(
    "torch.autograd.profiler.profile.profiler_kind", why="a profiler that leaves the GPUs alone (profiling)"
)
def _profiler() -> bool:
    profiler = torch.autograd.profiler
    kinds = profiler.ProfilerState.KINETO_GPU_FALLBACK, profiler.ProfilerState.KINETO
    return profiler.profile(use_cpu=True).profiler_kind in kinds


@_names(
    "torch.UntypedStorage._share_cuda_",
    why="sending a tensor to another process is refused (machine.torch_api.processes)",
)
def _sharing() -> bool:
    kind = torch.UntypedStorage
    return callable(kind._share_cuda_) and _mentions(
        torch.multiprocessing.reductions.reduce_tensor, "_share_cuda_"
    )


def what_moved() -> Iterator[tuple[Private, str]]:
    """The private names that are not what labkit rests on any more, and what is wrong with them."""
    for private in PRIVATE:
        wrong = private.moved()
        if wrong is not None:
            yield private, wrong


def main() -> int:
    """Print what moved; 1 if anything did."""
    moved = list(what_moved())
    for private, wrong in moved:
        print(f"{', '.join(private.names)}: {wrong}\n  {private.why} (since {private.since})")
    print(
        f"PyTorch {torch.__version__}: {len(moved)} of {len(PRIVATE)} private things that labkit rests on have moved"
    )
    return bool(moved)


if __name__ == "__main__":
    sys.exit(main())
