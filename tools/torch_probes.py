"""Whether the private things of torch still are what labkit rests on: the probes of :mod:`.torch_private`.

Each returns whether it is so; raising counts as no.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from labkit.base.patches import Patch, Patches


class _Seen(TorchFunctionMode):
    """Notes the functions that pass."""

    def __init__(self) -> None:
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


def seen(run: Callable[[], object]) -> set[Any]:
    """The functions of torch that a mode sees while this runs."""
    with _Seen() as seen:
        run()
    return set(seen.functions)


def asks(function: Any, *names: str) -> bool:
    """That ``function`` looks these names up when it is called: what is put in their place will be found."""
    missing = set(names) - set(inspect.unwrap(function).__code__.co_names)
    if missing:
        raise LookupError(f"{function.__qualname__} does not use {', '.join(sorted(missing))} any more")
    return True


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def a_storage_keeps_its_object() -> bool:
    x = torch.ones(4)
    x.untyped_storage()._labkit_probe = mark = object()
    views = x[1:], x.detach(), x.view(2, 2), nn.Parameter(x)
    return all(view.untyped_storage()._labkit_probe is mark for view in views)


def stack_of_modes() -> bool:
    mode, below = _Seen(), torch._C._len_torch_function_stack()
    torch._C._push_on_torch_function_stack(mode)
    there = torch._C._len_torch_function_stack(), torch._C._get_function_stack_at(below)
    return there == (below + 1, mode) and torch._C._pop_torch_function_stack() is mode


def default_device() -> bool:
    torch.set_default_device("meta")
    context, bottom = torch._GLOBAL_DEVICE_CONTEXT.device_context, torch._C._get_function_stack_at(0)
    right = isinstance(context, torch.utils._device.DeviceContext) and context.device.type == "meta"
    torch.set_default_device(None)
    return right and bottom is context and torch._C._len_torch_function_stack() == 0


def functions_that_modes_see() -> bool:
    x, f = torch.ones(1, 1, 3), nn.functional
    found = seen(lambda: (f.softmax(x, 1), f.conv1d(x, x), x.shape, x + x, x.grad, 2 / x))
    names = {function.__name__ for function in found}
    return (
        {Tensor.shape.__get__, Tensor.grad.__get__, Tensor.add} <= found
        and {"softmax", "conv1d"} <= names
        and bool(names & {"__rdiv__", "__rtruediv__"})
    )


def switches() -> bool:
    with _Seen() as seen:
        with torch._C.DisableTorchFunction():
            torch.ones(1)
        with torch._C.DisableTorchFunctionSubclass():
            torch.zeros(1)
    return seen.functions == [torch.zeros]


def functorch_wrappers() -> bool:
    inside: list[bool] = []

    def look(x: Tensor) -> Tensor:
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(x)
        inside.append(wrapped and torch._C._functorch.get_unwrapped(x).shape == (2, 3))
        return x

    torch.vmap(look)(torch.ones(2, 3))
    return inside == [True]


def modes_can_hand_on() -> bool:
    class Named(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch._C._len_torch_function_stack(), torch._C._is_torch_function_enabled()

    class HandsOn(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented if types == (Named,) else func(*args, **(kwargs or {}))

    named = torch.ones(1).as_subclass(Named)
    with HandsOn():
        found = named + 1
    with torch._C.DisableTorchFunctionSubclass():
        return bool(found == (1, True)) and not torch._C._is_torch_function_enabled()


def batched_gradients() -> bool:
    inside: list[bool] = []

    def look(grads: tuple[Tensor, ...], _: Any) -> None:
        inner = torch._remove_batch_dim(grads[0], 1, 1, 0)
        legacy = torch._C._functorch.is_legacy_batchedtensor
        inside.append(legacy(grads[0]) and not legacy(inner) and inner.shape == (3, 2))

    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.grad_fn.register_hook(look)
    torch.autograd.grad(y, x, torch.ones(3, 2), is_grads_batched=True)
    return inside == [True]


def made_parameters() -> bool:
    seen = []

    def make(*args: Any) -> Tensor:
        made: Tensor = real(*args)
        seen.append(made)
        return made

    real: Any = Tensor._make_subclass
    with Patches(lambda: [Patch(Tensor, "_make_subclass", staticmethod(make))]):
        made = nn.Parameter(torch.ones(2))
    return len(seen) == 1 and seen[0] is made


def wrappers() -> bool:
    make: Any = Tensor._make_wrapper_subclass

    def dispatch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func

    kind = type("Wrapper", (Tensor,), {"__torch_dispatch__": classmethod(dispatch)})
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate)
    wrapper = make(kind, (2,), dtype=torch.float32, device="cpu", _extra_dispatch_keys=keys)
    plain = Tensor.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    return plain and wrapper.untyped_storage().nbytes() == 8 and wrapper.is_conj()


def versions() -> bool:
    x = torch.ones(2)
    before = x._version
    x[:1].add_(1)
    return x._version == before + 1 and x[:1]._is_view() and not x._is_view()


def flat_and_back() -> bool:
    x, y = torch.ones(2, 2), torch.zeros(3)
    flat = torch._utils._flatten_dense_tensors([x, y])
    pieces = torch._utils._unflatten_dense_tensors(flat, [x, y])
    views = all(piece.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for piece in pieces)
    same = torch.equal(torch._C._nn.flatten_dense_tensors([x, y]), flat)
    return same and views and [piece.shape for piece in pieces] == [x.shape, y.shape]


def generators_can_be_subclassed() -> bool:
    class Other(torch.Generator):
        pass

    other = Other("cpu")
    other.labkit = 1  # and carry attributes
    return torch._C.Generator is torch.Generator and other.manual_seed(1) is other


def dispatch_mode() -> bool:
    found: list[str] = []

    class Notes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(func.name())
            return func(*args, **(kwargs or {}))

    with Notes():
        torch.ones(1).add_(1)
    return found == ["aten::ones", "aten::add_.Tensor"]


def no_kernel() -> bool:
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    try:
        torch.ops.aten.histogram.bin_ct.redispatch(cuda, torch.ones(1))
    except NotImplementedError as error:
        return str(error).startswith(
            "Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend."
        )
    return False


def schemas() -> bool:
    op = torch.ops.aten.add.out
    first, *_, out = op._schema.arguments
    names = op._schema.name, op._overloadname, op.overloadpacket.__name__
    writes = first.alias_info is None and out.is_out and out.alias_info.is_write
    return writes and names == ("aten::add", "out", "add")


def kernels_of_python() -> bool:
    library, name = torch.library.Library("labkit_probe", "FRAGMENT"), "labkit_probe::twice"
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    first = torch.library.get_kernel(name, "CPU")
    over: Any = torch._C._dispatch_library("IMPL", "labkit_probe", "", __file__, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        over.impl("twice", "CPU", lambda keys, x: first.call_boxed(keys, x) + 1, True)
    operator, packet = torch._library.utils.lookup_op(name), torch.ops.labkit_probe.twice
    known = (
        "labkit_probe/twice/CPU" in torch.library._impls
        and packet._qualified_op_name == operator._name == name
    )
    stood_over = operator(torch.ones(1)).item()
    del over
    found = known and (stood_over, operator(torch.ones(1)).item()) == (3, 2)
    library._destroy()
    return found


def fake_tensors() -> bool:
    room = resolve_name("torch._subclasses.fake_tensor")
    mode, current, key = (
        room.FakeTensorMode(),
        torch._C._get_dispatch_mode,
        torch._C._TorchDispatchModeKey.FAKE,
    )
    with mode:
        inside = current(key) is mode and torch.empty(1).fake_device.type == "cpu"
    return (
        inside
        and current(key) is None
        and isinstance(room.FakeTensorMode.avoid_device_init, property)
        and parameters(room.FakeTensorConverter.from_real_tensor)[:3] == ["self", "fake_mode", "t"]
    )


def dtensors() -> bool:
    dispatch = resolve_name("torch.distributed.tensor._dispatch").OpDispatcher
    tracker = resolve_name("torch.distributed.tensor._random").OffsetBasedRNGTracker
    slow = dispatch._dispatch_get_local_results_slow_path
    return (
        isinstance(vars(dispatch)["redistribute_local_args"], staticmethod)
        and isinstance(
            resolve_name("torch.distributed.tensor").DTensor._op_dispatcher._custom_op_handlers, dict
        )
        and asks(slow, "redistribute_local_args", "OffsetBasedRNGTracker", "distribute_region_enabled")
        and parameters(tracker._distribute_region)[:2] == ["self", "spec"]
        and parameters(tracker._compute_rng_offsets) == ["self", "spec"]
        and parameters(tracker._set_device_state) == ["self", "state"]
        and asks(tracker.__init__, "_get_device_state", "_set_device_state")
    )


def cutting() -> bool:
    schemas = resolve_name("torch.distributed.tensor._op_schema")
    expand = resolve_name("torch.distributed.tensor._ops.utils").expand_to_full_mesh_op_strategy
    propagator = resolve_name("torch.distributed.tensor").DTensor._op_dispatcher.sharding_propagator
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default._schema
    return (
        asks(schemas.OpSchema.gen_fake_args, "_rebuild_tensor_from_dtensor_meta")
        and parameters(expand)[:3] == ["mesh", "op_schema", "single_mesh_dim_strategies"]
        and parameters(schemas.RuntimeSchemaInfo)[:2] == ["static_argnum", "static_kwargkey"]
        and isinstance(propagator.op_strategy_funcs, dict)
        and isinstance(propagator.op_to_schema_info, dict)
        and [len(forward.arguments), len(forward.returns)] == [7, 2]
    )


def buckets() -> bool:
    if not torch.distributed.is_available():
        return True
    made = inspect.getsource(nn.parallel.DistributedDataParallel)
    calls = "dist.Reducer(", "self.reducer._rebuild_buckets()", "self.reducer._set_static_graph()"
    there = hasattr(torch.distributed.Reducer, "_get_zeros_like_grad_buckets")
    return there and all(call in made for call in calls)


def ranks_of_threads() -> bool:
    if not torch.distributed.is_available():
        return True
    c10d = resolve_name("torch._C._distributed_c10d")
    kinds = c10d.Work, c10d.Store, c10d.ReduceOp, c10d.ProcessGroup, c10d.Backend
    mesh = resolve_name("torch.distributed.device_mesh").DeviceMesh
    pieces = inspect.getsource(mesh)
    return (
        all(isinstance(kind, type) for kind in kinds)
        and callable(c10d._set_thread_isolation_mode)
        and asks(torch.distributed.is_nccl_available, "_NCCL_AVAILABLE")
        and asks(
            resolve_name("torch.distributed.utils")._verify_param_shape_across_processes,
            "_verify_params_across_processes",
        )
        and "self._thread_id = " in pieces
    )


def profilers() -> bool:
    profile = torch.autograd.profiler.profile
    return (
        asks(profile._prepare_trace, "_prepare_profiler")
        and asks(profile._start_trace, "_enable_profiler")
        and asks(profile.__exit__, "_disable_profiler")
    )


def frames_between() -> bool:
    disabling = files("torch").joinpath("_dynamo/eval_frame.py").read_text("utf-8")
    return nn.Module.__call__ is nn.Module._wrapped_call_impl and "def _fn(" in disabling


def what_a_loader_reads() -> bool:
    kind = torch.utils.data.dataloader._BaseDataLoaderIter
    single = torch.utils.data.dataloader._SingleProcessDataLoaderIter
    loader: Any = torch.utils.data.DataLoader([5, 6, 7], batch_size=2)  # type: ignore[arg-type]
    iterator: Any = iter(loader)
    return (
        isinstance(iterator, kind)
        and iterator._dataset is loader.dataset
        and asks(single._next_data, "_next_index")
        and iterator._next_index() == [0, 1]
    )


def in_backward() -> bool:
    inside: list[int] = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda _: inside.append(torch._C._current_graph_task_id()))
    x.backward()
    return torch._C._current_graph_task_id() == -1 and inside != [-1]


def below_modes() -> bool:
    found: list[str] = []

    class Notes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(func.name())
            return func(*args, **(kwargs or {}))

    with Notes(), torch._C._DisableTorchDispatch():
        torch.ones(1)
    return not found


def one_mode_below_another() -> bool:
    dispatch: Any = sys.modules["torch.utils._python_dispatch"]
    with dispatch.TorchDispatchMode() as outer, dispatch.TorchDispatchMode() as inner:
        with dispatch._pop_mode_temporarily() as popped:
            rest = dispatch._get_current_dispatch_mode_stack()
        return popped is inner and rest == [outer] and not inner.is_infra_mode()


def below_counting() -> bool:
    tensor = torch.zeros(1)
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)):
        tensor.copy_(torch.ones(1))
    return tensor.item() == 1 and tensor._version == 0


def operator_table() -> bool:
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


def engine() -> bool:
    calls: list[tuple[Any, ...]] = []
    real = torch.autograd._engine_run_backward

    def noted(outputs: Any, grads: Any, keep: Any, create: Any, inputs: Any, *rest: Any, **rare: Any) -> Any:
        calls.append((*outputs, len(inputs)))
        return real(outputs, grads, keep, create, inputs, *rest, **rare)

    x = torch.ones(2, requires_grad=True)
    y, z = x.sum(), x.prod()
    with Patches(lambda: [Patch(torch.autograd, "_engine_run_backward", noted)]):
        y.backward()
        torch.autograd.grad(z, x)
    return calls == [(y, 0), (z, 1)]


def functions() -> bool:
    class Doubled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

    kind = torch.autograd.function.BackwardCFunction
    apply = inspect.getattr_static(Function, "apply").__get__(None, Doubled)
    node = apply(torch.ones(1, requires_grad=True)).grad_fn
    node._labkit_probe = 1
    return isinstance(node, kind) and Doubled._backward_cls.apply is kind.apply


def saved_tensors() -> bool:
    return asks(torch.autograd.graph.saved_tensors_hooks.__enter__, "_push_saved_tensors_default_hooks")


def module_hooks() -> bool:
    kind, module, called = torch.utils.hooks.BackwardHook, nn.Linear(1, 1), []
    module.register_full_backward_hook(lambda *_: called.append(1))
    module(torch.ones(1, requires_grad=True)).backward()
    set_ups = [parameters(kind.setup_input_hook), parameters(kind.setup_output_hook)]
    made = parameters(kind.__init__) == ["self", "module", "user_hooks", "user_pre_hooks"]
    return made and called == [1] and set_ups == [["self", "args"]] * 2


def below_autograd() -> bool:
    x, keys = torch.ones(2, requires_grad=True), torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch.no_grad(), torch._C._ExcludeDispatchKeyGuard(keys):
        made = x[:1]
    return made._base is None and x[:1]._base is x


def replicas() -> bool:
    norm = nn.BatchNorm1d(2)
    replica = norm._replicate_for_data_parallel()
    return (
        list(nn.Sequential(norm)._modules.items()) == [("0", norm)]
        and list(norm._parameters) == ["weight", "bias"]
        and list(norm._buffers)[:2] == ["running_mean", "running_var"]
        and {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}
        <= vars(norm).keys()
        and replica._is_replica
        and not list(replica.parameters())
        and asks(sys.modules["torch.nn.parallel.replicate"].replicate, "_former_parameters")
    )


def parallel_functions() -> bool:
    room = torch.nn.parallel._functions
    kinds = room.Broadcast, room.Scatter, room.Gather
    verbs = all(isinstance(vars(kind)["backward"], staticmethod) for kind in kinds)
    return verbs and asks(room._get_stream, "_streams")


def foreach() -> bool:
    x = torch.ones(1)
    ((key, (lists, _)),) = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([[x]]).items()
    return key == (x.device, x.dtype) and lists[0][0] is x


def answered() -> bool:
    comm, foreach = sys.modules["torch.nn.parallel.comm"], torch.utils._foreach_utils
    return (
        asks(torch.cuda.current_device, "_cuda_getDevice")
        and asks(torch.accelerator.current_device_index, "_accelerator_getDeviceIndex")
        and asks(comm.scatter, "_scatter")
        and asks(comm.gather, "_gather")
        and asks(comm.broadcast_coalesced, "_broadcast_coalesced")
        and asks(foreach._group_tensors_by_device_and_dtype, "_group_tensors_by_device_and_dtype")
    )


def shardings() -> bool:
    """A mesh's own are part of the key by which DTensor remembers what it has worked out."""
    if not torch.distributed.is_available():
        return True
    room = files("torch").joinpath("distributed")
    propagator = room.joinpath("tensor/_sharding_prop.py").read_text()
    mesh = room.joinpath("device_mesh.py").read_text()
    return all(
        name in propagator
        for name in (
            "def propagate_op_sharding_non_cached",
            "op_strategy_funcs",
            "op_single_dim_strategy_funcs",
            "op_to_rules",
        )
    ) and all(name in mesh for name in ("_flatten_rank_map", "_layout", "_device_type", "_mesh_dim_names"))
