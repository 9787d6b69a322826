"""Every private name of torch that labkit rests on: why, since when, and a probe that it still is what it was.

What stands in nobody's documentation may change with any release. ``python -m tools.torch_private`` says what
moved in the torch that is installed; it needs no more of labkit than this folder. Rooms use the names where they
need them, and a test finds every one that is not listed here. What is replaced only while a machine is in use stands
in :mod:`labkit.machine.torch_api.table` too.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from tools import torch_probes as probes
from tools.torch_probes import asks, seen


@dataclass(frozen=True)
class Private:
    """Names that belong together.

    names   as ``torch.somewhere._name, torch.elsewhere._name`` or ``torch.somewhere: _name, _other``, which are
            looked up; in words, what has no such place.
    why     what labkit does with them, and where.
    probe   whether they do what labkit rests on; raising counts as no. Without one it is enough that they are there.
    since   the first release of which this is known (labkit looked at none before 2.12).
    """

    names: str
    why: str
    probe: Callable[[], object] = lambda: True
    since: str = "2.12"

    def _look_up(self) -> None:
        owner, _, names = self.names.rpartition(": ")
        for name in names.split(", "):
            if (path := f"{owner}.{name}".removeprefix(".")).startswith("torch."):
                resolve_name(path)

    def moved(self) -> str | None:
        """A text of what has changed; None if all is as it was. Runs on a thread of its own, whose modes it may use."""
        found: list[str | None] = []

        def run() -> None:
            try:
                self._look_up()
                found.append(None if self.probe() else "is there and does something else")
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            thread.start()
            thread.join()
        return found[0]


# Files of torch, and what in them is a process's.
_OF_A_PROCESS = {
    "distributed/_symmetric_memory/__init__.py": "_group_name_to_store _group_name_to_workspace_tensor "
    "_backend_streams _symm_mem_pools _mocked_group_names _use_implicit_mempool _is_test_mode",
    "distributed/checkpoint/_async_process_executor.py": "_CHECKPOINT_PROCESS",
    "distributed/fsdp/_fsdp_extensions.py": "_extensions",
    "distributed/tensor/_random.py": "_rng_tracker",
    "distributed/tensor/_redistribute.py": "_FORCE_MIN_COST_REDISTRIBUTION_PLAN "
    "_DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION _warned_flatten_issues",
    "distributed/tensor/experimental/_context_parallel/_attention.py": "_dispatch_mode _cp_options "
    "_replaced_functions _compiled_create_block_mask",
    "distributed/tensor/experimental/_context_parallel/_sharding_rules.py": "_original_strategies "
    "_cp_strategy_contexts",
}

PRIVATE = [
    # Tensors, storages, and the modes that see them.
    Private("attributes of torch.UntypedStorage", "the mark that says which GPU a storage is on (machine.state.gpu)",
            probes.a_storage_keeps_its_object),
    Private("_untyped_storage of a torch.TypedStorage", "what it wraps (machine.ops.moves)",
            lambda: isinstance(torch.TypedStorage(1)._untyped_storage, torch.UntypedStorage)),
    Private("torch._C.StorageBase.device", "the real one, while the property stands for the GPU (machine.ops.storages)",
            lambda: torch._C.StorageBase.device.__get__(torch.ones(1).untyped_storage()).type == "cpu"),
    Private("torch._C: _len_torch_function_stack, _get_function_stack_at, _push_on_torch_function_stack, "
            "_pop_torch_function_stack",
            "the machine's mode goes below the modes that are there, and out from among them (machine.stack)",
            probes.stack_of_modes),
    Private("torch.Tensor._make_subclass", "parameters are made with it, and get gradients (machine.ops.gradients)",
            probes.made_parameters),
    Private("torch.Tensor._fix_weakref",
            "a tensor that only C++ held is made good when it is met by a weak reference (machine.state.leaves)",
            lambda: torch.zeros(1)._fix_weakref() is None),
    Private("torch._GLOBAL_DEVICE_CONTEXT, torch.utils._device.DeviceContext",
            "the mode of set_default_device, which torch looks for at the bottom (machine.stack, machine.ops.moves)",
            probes.default_device),
    Private("torch.utils._device._device_constructors", "what makes a tensor on device= (machine.ops.moves)",
            lambda: set(torch.utils._device._device_constructors())
            >= {torch.empty, torch.tensor, torch.as_tensor, torch.arange, torch.rand, torch.full}),
    Private("torch: _empty_affine_quantized, _empty_per_channel_affine_quantized",
            "they take pin_memory, too (machine.features.pinned)",
            lambda: torch._empty_affine_quantized(1, scale=1.0, zero_point=0, dtype=torch.quint8).is_quantized
            and callable(torch._empty_per_channel_affine_quantized)),
    Private("functions as modes see them",
            "handlers are found by function, rules by __name__ (machine.ops, machine.rules)",
            probes.functions_that_modes_see),
    Private("torch._C: DisableTorchFunction, DisableTorchFunctionSubclass",
            "the first switches modes off too, the second subclasses only (machine, diagnosis)",
            probes.switches),
    Private("torch._C._is_torch_function_enabled",
            "a mode that gives NotImplemented hands on to a subclass, and is on in there (machine.ops.mode)",
            probes.modes_can_hand_on),
    Private("torch._C._functorch: is_functorch_wrapped_tensor, get_unwrapped",
            "what vmap and grad wrap is looked through to its storage (machine.state.placement)",
            probes.functorch_wrappers),
    Private("torch._C._functorch.is_legacy_batchedtensor, torch._remove_batch_dim, torch._add_batch_dim",
            "what batched gradients wrap, too (machine.state.placement)",
            probes.batched_gradients),
    Private("torch.Tensor: _values, _indices", "sparse tensors: two storages (machine.state.placement)",
            lambda: torch.eye(2).to_sparse()._values().tolist() == [1, 1]
            and torch.eye(2).to_sparse()._indices().tolist() == [[0, 1], [0, 1]]),
    Private("torch.Tensor: _version, _is_view",
            "inputs written in place (diagnosis); harmless questions (machine.ops.mode)",
            probes.versions),
    Private("torch._tensor_str._str", "torch's own printing, with the machine in sight (machine.ops.mode)",
            lambda: torch._tensor_str._str(torch.ones(2)) == "tensor([1., 1.])"),
    Private("torch._C._nn._parse_to", "Module.to reads its arguments with it (machine.ops.moves)",
            lambda: torch._C._nn._parse_to("cpu", torch.half) == (torch.device("cpu"), torch.half, False, None)),
    Private("torch._C._nn.flatten_dense_tensors, "
            "torch._utils._flatten_dense_tensors, torch._utils._unflatten_dense_tensors",
            "tensors that travel together (collectives, engine.replicate); two are one, the third is the way back",
            probes.flat_and_back),
    Private("torch._VF: _pack_padded_sequence, _pad_packed_sequence", "lengths on the host (machine.rules)",
            lambda: {torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence}
            <= seen(lambda: nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.pack_sequence([torch.ones(3, 2)])))),
    Private("torch: _standard_gamma, _sample_dirichlet",
            "draw, and take no generator from modules (machine.state.random)",
            lambda: {torch._standard_gamma, torch._sample_dirichlet}
            <= seen(lambda: (torch._standard_gamma(torch.ones(1)), torch._sample_dirichlet(torch.ones(2))))),
    Private("torch._C: ScriptFunction, ScriptMethod",
            "what scripted code returns is placed (machine.features.compiling)",
            lambda: type(torch.jit.trace(torch.neg, torch.ones(1))) is torch._C.ScriptFunction
            and type(torch.jit.trace(nn.Linear(1, 1), torch.ones(1)).forward) is torch._C.ScriptMethod),
    Private("torch._C._set_default_tensor_type", "torch.set_default_tensor_type calls it (machine.features.types)",
            lambda: asks(torch.set_default_tensor_type, "_set_default_tensor_type")),
    Private("torch._tensor_classes", "the old tensor types, those of CUDA with them (machine.features.types)",
            lambda: torch.FloatTensor in torch._tensor_classes),
    Private("torch._C._activate_gpu_trace", "refused by name (machine.features.refused)"),
    Private("torch._C._get_default_device", "what is there is printed without its device (machine.features.types)",
            lambda: asks(torch._tensor_str._str_intern, "_get_default_device")),
    Private("torch._C._set_grad_enabled", "switched with the machine's mode off the stack (machine.ops.mode)",
            lambda: asks(torch.set_grad_enabled.__init__, "_set_grad_enabled")),
    Private("torch._C.Generator", "the class, under its second name (machine.state.random)",
            probes.generators_can_be_subclassed),
    Private("torch._C._has_cudnn", "torch.backends.cudnn.is_available (machine.torch_api.cuda)",
            lambda: asks(torch.backends.cudnn.is_available, "_has_cudnn")),
    Private("torch._dynamo._trace_wrapped_higher_order_op",
            "a score function's indices are tensors (machine.features.flexible_attention)"),
    Private("torch.ops.aten: _scaled_dot_product_flash_attention, _scaled_dot_product_efficient_attention, "
            "_scaled_dot_product_cudnn_attention, _scaled_dot_product_flash_attention_backward, "
            "_scaled_dot_product_efficient_attention_backward, _scaled_dot_product_cudnn_attention_backward",
            "CUDA's operators of attention have kernels here (machine.features.attention_kernels)",
            lambda: hasattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention_backward")),

    # Operators and their rules.
    Private("torch.utils._python_dispatch.TorchDispatchMode, torch._C._len_torch_dispatch_stack",
            "a mixed call is replayed operator by operator (machine.ops.mixed); modes see devices "
            "(machine.features.dispatch.classes); "
            "draws are made alike (diagnosis.same_random)",
            probes.dispatch_mode),
    Private("torch._C: _push_on_torch_dispatch_stack, _pop_torch_dispatch_stack",
            "the machine's dispatch modes leave wherever they could come (machine.stack)",
            probes.dispatch_mode),
    Private("torch: _cufft_get_plan_cache_size, _cufft_get_plan_cache_max_size, _cufft_set_plan_cache_max_size, "
            "_cufft_clear_plan_cache",
            "the plans that cuFFT keeps are counted (machine.features.cuda_runtime)"),
    Private("torch: _int_mm", "CUDA's rows and columns (machine.features.kernels.answers)"),
    Private("warnings._showwarnmsg",  # Python's
            "a warning names the user's line (machine.features.warned_lines)",
            lambda: callable(warnings._showwarnmsg)),
    Private("torch.Tensor._make_wrapper_subclass, _extra_dispatch_keys, torch._C._disabled_torch_dispatch_impl",
            "wrappers are on a GPU and take no room there (machine.features.dispatch.classes)",
            probes.wrappers),
    Private("of a torch._ops.OpOverload: _schema, _overloadname",
            "which argument an operator writes, its entry in the operator table (machine.rules.operators); "
            "what a draw is given (diagnosis.same_random)",
            probes.schemas),
    Private("torch._C._dispatch_has_kernel_for_dispatch_key",
            "whether an operator is made of others (machine.ops.mixed)",
            lambda: [torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeImplicitAutograd")
                     for name in ("linear", "mm")] == [True, False]),
    Private("torch.ops.aten: _to_copy, _copy_from, _has_compatible_shallow_copy_type, _unsafe_index, _index_put_impl_, "
            "_unsafe_index_put, _foreach_copy_, _native_batch_norm_legit, _foreach_add, _foreach_add_, "
            "_foreach_mul, _foreach_mul_, _foreach_div, _foreach_div_, "
            "_foreach_addcmul, _foreach_addcmul_, _foreach_addcdiv, _foreach_addcdiv_, _fused_adam_, _fused_adamw_, "
            "_fused_sgd_, _fused_adagrad_",
            "operators with rules of their own (machine.rules)"),
    Private("torch.library._impls, torch.library.Library._resolve_op_name, torch._library.utils.lookup_op, "
            "torch._C._dispatch_library, torch.utils._python_dispatch._disable_current_modes, _qualified_op_name",
            "a router stands at the CPU's key of an operator and hands on to CUDA's "
            "(machine.features.dispatch.libraries)",
            probes.kernels_of_python),
    Private("torch._native.registry._aten_override_libs, _install_aten_override",
            "kernels that torch, built for CUDA, wrote in Python for a real GPU are left to it "
            "(machine.features.dispatch.libraries)",
            lambda: all(key == "CUDA" for _, key in resolve_name("torch._native.registry")._aten_override_libs)),
    Private("torch.Tensor._dtensor__new__, torch._utils._rebuild_wrapper_subclass, _op_dispatcher, _local_tensor, "
            "_random, _distribute_region, _compute_rng_offsets, _get_device_state, run_dtensor_rng_op, "
            "_custom_op_handlers",
            "DTensors and what they hold are on the rank's GPU, and wrappers are loaded there "
            "(machine.features.dtensors)",
            probes.dtensors),
    Private("_dispatch_fast_path_python_tail of DTensor's dispatcher",
            "what C++ has computed for a DTensor is put on the rank's GPU (machine.features.dtensors)",
            lambda: callable(resolve_name(
                "torch.distributed.tensor._dispatch").OpDispatcher._dispatch_fast_path_python_tail)),
    Private("_op_schema._rebuild_tensor_from_dtensor_meta, _ops.utils of torch.distributed.tensor, "
            "_scaled_dot_product_flash_attention_for_cpu, _scaled_dot_product_flash_attention_for_cpu_backward",
            "DTensors are asked for shapes on the host; attention by the CPU's kernel is cut up as CUDA's is "
            "(machine.features.dtensors)",
            probes.cutting),
    Private("of torch.distributed.Reducer: _rebuild_buckets, _get_zeros_like_grad_buckets, _set_static_graph",
            "when it makes its buckets, and how great they are (machine.features.reducers)",
            probes.buckets),
    Private("torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey, torch._subclasses.fake_tensor.FakeTensor",
            "fake tensors say themselves where they are; gradients of them are refused (machine.features.fakes); their "
            "mode answers after the machine's own (machine.stack)",
            probes.fake_tensors),
    Private("torch._C._nested.nested_tensor", "tells no mode (machine.ops.moves)",
            lambda: torch._C._nested.nested_tensor
            not in seen(lambda: torch._C._nested.nested_tensor([torch.ones(1)]))),
    Private("torch._C: _to_dlpack, _to_dlpack_versioned, _from_dlpack, _torchDeviceToDLDevice",
            "capsules of tensors on simulated GPUs say so (machine.features.dlpack)",
            lambda: torch._C._torchDeviceToDLDevice(torch.device("cuda:1")) == (2, 1)
            and torch._C._from_dlpack(torch._C._to_dlpack_versioned(torch.ones(1), dl_device=None, copy=None)) == 1
            and asks(torch.utils.dlpack.from_dlpack, "_from_dlpack")
            and asks(Tensor.__dlpack__, "_to_dlpack", "_to_dlpack_versioned")),
    Private("torch._library.triton.wrap_triton", "refused (machine.features.refused)"),
    Private("torchgen/packaged/ATen/native/native_functions.yaml",
            "how each operator checks devices (machine.rules.operators)",
            probes.operator_table),

    Private("of a torch._ops.OpOverload: redispatch; torch._C: DispatchKeySet, DispatchKey",
            "torch's own words for an operator without a CUDA kernel (machine.features.kernels)",
            probes.no_kernel),
    Private("torch.ops.aten: _addmm_activation, _histogramdd_bin_edges, _histogramdd_from_bin_cts, "
            "_histogramdd_from_bin_tensors, _sparse_sparse_matmul, _spdiags, _trilinear, _upsample_bilinear2d_aa, "
            "_upsample_bicubic2d_aa, _fft_r2c, _fft_c2c, _fft_c2r, _assert_async",
            "operators whose kernels on CUDA take other dtypes, or assert (machine.rules)"),
    Private("torch.ops.aten: _adaptive_avg_pool2d_backward, _adaptive_avg_pool3d_backward, _ctc_loss_backward, "
            "_embedding_bag_backward, _embedding_bag_dense_backward, _upsample_bilinear2d_aa_backward, "
            "_upsample_bicubic2d_aa_backward, _linalg_check_errors, _local_scalar_dense, _to_sparse, _unique, _unique2",
            "operators without an order on CUDA, or for which the host waits (machine.features.watching)"),
    Private("torch._C: _set_deterministic_algorithms",
            "torch.use_deterministic_algorithms calls it (machine.features.watching)",
            lambda: asks(torch.use_deterministic_algorithms, "_set_deterministic_algorithms")),
    Private("the files torch/_ops.py, torch/_compile.py, torch/_dynamo/eval_frame.py",
            "stand between an operator and a dispatch mode: no line of the user's (machine.features.watching)",
            lambda: all(files("torch").joinpath(name).is_file()
                        for name in ("_ops.py", "_compile.py", "_dynamo/eval_frame.py"))),

    # Autograd.
    Private("torch.autograd._engine_run_backward",
            "backward and grad start the engine by this name (machine.ops.gradients)",
            probes.engine),
    Private("torch.autograd.function.BackwardCFunction, torch.autograd.Function.apply",
            "a Function's node carries where its outputs were, its apply gets the gradients (machine.ops.gradients); "
            "Function.apply is a classmethod of Python up to 2.13, which calls that of C below it, and the one of C "
            "from 2.14 on: replaced in the class below Function, it is met by both",
            probes.functions),
    Private("torch.utils.hooks.BackwardHook",
            "module hooks see gradients on the GPU of the module's tensors (machine.ops.gradients)",
            probes.module_hooks),
    Private("torch._C._autograd._push_saved_tensors_default_hooks",
            "saved_tensors_hooks come here (machine.features.dispatch.classes)",
            probes.saved_tensors),
    Private("torch.autograd.graph.Node._input_metadata", "in which types a model computes (diagnosis.rounding)",
            lambda: [each.dtype for each in (torch.ones(1, dtype=torch.half, requires_grad=True) * 2)
                     .grad_fn._input_metadata] == [torch.half]),
    Private("torch._C._ExcludeDispatchKeyGuard", "autograd's tracking, off as in C++ (machine.torch_api.collectives)",
            probes.below_autograd),

    # Modules and torch.nn.parallel.
    Private("of modules: _parameters, _buffers, _modules, _forward_pre_hooks, _backward_hooks, _backward_pre_hooks, "
            "whatever begins with _forward_; "
            "_replicate_for_data_parallel, and what it leaves: _is_replica, _former_parameters",
            "what a replica is made of and known by (engine.replicate, lost, hints; trace.recording; diagnosis)",
            probes.replicas),
    Private("torch.nn.modules.batchnorm._BatchNorm", "layers that take statistics over the batch (diagnosis)",
            lambda: all(issubclass(kind, torch.nn.modules.batchnorm._BatchNorm)
                        for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm))),
    Private("parameters called name_orig and name_g", "weights that hooks or parametrizations make anew (diagnosis)",
            lambda: "weight_orig" in nn.utils.spectral_norm(nn.Linear(2, 2))._parameters
            and "weight_g" in nn.utils.weight_norm(nn.Linear(2, 2))._parameters),
    # Read, not imported: torch._dynamo takes seconds.
    Private("_orig_mod of an OptimizedModule", "the module inside a compiled one (diagnosis)",
            lambda: 'self._modules["_orig_mod"]' in files("torch").joinpath("_dynamo/eval_frame.py").read_text()),
    Private("torch._dynamo.run", "runs what was to be compiled as it is, in the wrapper that a compiled module has "
            "(machine.features.compiling)",
            lambda: "RunOnlyContext()(fn)" in files("torch").joinpath("_dynamo/decorators.py").read_text()),
    Private("torch.nn.parallel._functions: Broadcast, Scatter, Gather, _streams",
            "PyTorch's own verbs, which are recorded (trace.recording); its copy streams (machine.torch_api.cuda)",
            probes.parallel_functions),

    # torch.cuda's own names for what it asks C++, in the place of which the machine puts its answers.
    Private("torch.cuda: _exchange_device, _maybe_exchange_device, _cudart, _initialized, _is_in_bad_fork, "
            "_cached_device_count, _device_count_nvml, _HAS_PYNVML",
            "torch.cuda's Python code asks them at each call (machine.torch_api.cuda, machine.features.processes)",
            lambda: asks(torch.cuda.device.__enter__, "_exchange_device")
            and asks(torch.cuda.device.__exit__, "_maybe_exchange_device")
            and asks(torch.cuda.is_initialized, "_initialized", "_is_in_bad_fork")
            and asks(torch.cuda.device_count, "_cached_device_count", "_device_count_nvml")
            and asks(torch.cuda._get_pynvml_handler, "_HAS_PYNVML")
            and asks(torch.cuda.cudart, "_cudart")),
    Private("_get_device_properties, which torch.cuda has once it is initialized", "the same",
            lambda: asks(torch.cuda.get_device_properties, "_get_device_properties")),
    Private("torch._C._has_cuda", "the same, by torch.backends.cuda",
            lambda: asks(torch.backends.cuda.is_built, "_has_cuda") and isinstance(torch._C._has_cuda, bool)),
    Private("torch.cuda.graphs: _cuda_isCurrentStreamCapturing, _graph_pool_handle",
            "optimizers ask the first, the other is refused by name (machine.torch_api.cuda, machine.features.refused)",
            lambda: asks(torch.cuda.graphs.is_current_stream_capturing, "_cuda_isCurrentStreamCapturing")
            and asks(torch.cuda.graphs.graph_pool_handle, "_graph_pool_handle")),
    Private("the bases _CUDAGraph, _MemPool and _CudaStreamBase of torch.cuda's classes",
            "refused by name (machine.features.refused)",
            lambda: [kind.__base__.__name__ for kind in (torch.cuda.CUDAGraph, torch.cuda.MemPool, torch.cuda.Stream)]
            == ["_CUDAGraph", "_MemPool", "_CudaStreamBase"]),
    Private("what torch._C has for CUDA: _cuda_*, _cudnn_*, _cublas*, _nccl_*, _accelerator_*, _host_emptyCache, "
            "_get_accelerator, "
            "_group_tensors_by_device_and_dtype, _broadcast*, _scatter*, _gather*, _CudaDeviceProperties",
            "answered by the machine or refused by name (python -m labkit.machine lists them)",
            probes.answered),
    Private("torch.utils._foreach_utils", "where optimizers group tensors by device (machine.torch_api.cuda)",
            probes.foreach),
    Private("torch.cuda.nvtx._nvtx", "ranges that nobody times (machine.features.profiling)",
            lambda: asks(torch.cuda.nvtx.range_push, "_nvtx") and asks(torch.cuda.nvtx.range_pop, "_nvtx")),
    Private("profiler_kind of a torch.autograd.profiler.profile",
            "a profiler that leaves the GPUs alone (machine.features.profiling)",
            lambda: torch.autograd.profiler.profile(use_cpu=True).profiler_kind.name
            in ("KINETO_GPU_FALLBACK", "KINETO")),
    Private("torch.UntypedStorage: _share_cuda_, _new_shared_cuda, _release_ipc_counter_cuda",
            "a tensor on a GPU goes to another process (machine.features.processes)",
            lambda: asks(torch.multiprocessing.reductions.reduce_tensor, "_share_cuda_")
            and asks(torch.multiprocessing.reductions.rebuild_cuda_tensor, "_new_shared_cuda")
            and asks(torch.UntypedStorage._release_ipc_counter.__func__, "_release_ipc_counter_cuda")),
    Private("torch.UntypedStorage: _share_fd_cpu_, _new_shared_fd_cpu, _share_filename_cpu_, "
            "_new_shared_filename_cpu, _shared_incref, _shared_decref",
            "the shared memory in which its values go (machine.features.processes)",
            lambda: asks(torch.multiprocessing.reductions.reduce_storage, "_share_fd_cpu_", "_share_filename_cpu_",
                          "_shared_incref")
            and asks(torch.multiprocessing.reductions.rebuild_storage_fd, "_new_shared_fd_cpu")
            and asks(torch.multiprocessing.reductions.rebuild_storage_filename, "_new_shared_filename_cpu",
                      "_shared_decref")),
    Private("torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler.SubprocessHandler._popen, "
            "its _stdout and _stderr",
            "starts a worker: a preloaded process is forked instead (distributed/torchrun/in_processes.py); "
            "the agent asks api.get_subprocess_handler for it",
            lambda: callable(resolve_name("torch.distributed.elastic.multiprocessing.api.get_subprocess_handler"))),
    Private("torch.distributed.distributed_c10d._new_process_group_helper, where groups are made",
            "it says what there is instead of NCCL (machine.features.refused)",
            lambda: not torch.distributed.is_available() or list(inspect.signature(
                torch.distributed.distributed_c10d._new_process_group_helper).parameters)[3] == "backend"),

    # What is one process's, and so each rank's own where ranks share a process (distributed.rank.owned).
    Private("torch.distributed.distributed_c10d: _backend, _default_pg_init_method",
            "how a process has begun its groups (distributed.rank.owned)",
            lambda: asks(torch.distributed.init_process_group, "_default_pg_init_method")),
    Private("of torch.distributed's rooms that are imported late: " + " ".join(_OF_A_PROCESS.values()),
            "the same, of meshes, DTensor's numbers, symmetric memory, context parallelism, checkpoints "
            "(distributed.rank.owned)",
            lambda: all(re.search(rf"^{name}\b.*=", files("torch").joinpath(file).read_text(), re.MULTILINE)
                        for file, names in _OF_A_PROCESS.items() for name in names.split())),
    Private("torch.nn.modules.module: _global_backward_pre_hooks, _global_backward_hooks, "
            "_global_is_full_backward_hook, _global_forward_pre_hooks, _global_forward_hooks, "
            "_global_forward_hooks_always_called, _global_forward_hooks_with_kwargs, "
            "_global_buffer_registration_hooks, _global_module_registration_hooks, "
            "_global_parameter_registration_hooks",
            "the hooks of all modules of a process (distributed.rank.owned)",
            lambda: asks(nn.modules.module.register_module_forward_hook, "_global_forward_hooks")),
    Private("torch.optim.optimizer: _global_optimizer_pre_hooks, _global_optimizer_post_hooks", "of all optimizers"),
    Private("torch.utils._python_dispatch: _is_in_torch_dispatch_mode, _is_in_non_infra_torch_dispatch_mode, "
            "_is_in_any_mode_without_ignore_compile_internals", "whether a process is in a mode "
            "(distributed.rank.owned)"),
    Private("torch.utils._device.CURRENT_DEVICE, torch._tensor_str.PRINT_OPTS, "
            "torch.backends.mha._is_fastpath_enabled, torch.nn.utils.parametrize._cache, "
            "torch.nn.utils.parametrize._cache_enabled, torch.hub._hub_dir, "
            "torch.utils.checkpoint._checkpoint_debug_enabled, torch.utils.checkpoint._enable_checkpoint_early_stop, "
            "torch.autograd.profiler._is_profiler_enabled, torch.multiprocessing._sharing_strategy, "
            "torch.__future__._overwrite_module_params_on_conversion, "
            "torch.__future__._swap_module_params_on_conversion",
            "other settings of a process (distributed.rank.owned)"),
    Private("torch.nn.parallel.DistributedDataParallel._active_ddp_module", "whose forward runs "
            "(distributed.rank.owned)"),
    Private("what torch._C keeps of a process: _get_deterministic_algorithms, _set_deterministic_algorithms, "
            "_get_deterministic_algorithms_warn_only, _set_default_dtype, and _get_, _set_, _set_sdp_use_ of more",
            "settings in C++ (distributed.rank.owned)",
            lambda: hasattr(torch._C, "_set_sdp_use_flash") and hasattr(torch._C, "_get_deterministic_algorithms")),

    # Ranks in one process, and what watches them.
    Private("DistributedDataParallel._register_builtin_comm_hook, _register_comm_hook of torch.distributed",
            "C++'s hooks of DDP want the results of a group of C++ (distributed)",
            lambda: asks(torch.nn.parallel.DistributedDataParallel._register_builtin_comm_hook,
                          "_register_builtin_comm_hook")
            and asks(torch.nn.parallel.DistributedDataParallel.register_comm_hook, "_register_comm_hook")),
    Private("of torch._C._distributed_c10d: classes, _hash_tensors and _set_thread_isolation_mode, _NCCL_AVAILABLE, "
            "_verify_params_across_processes, _broadcast_coalesced, _thread_id of a DeviceMesh",
            "C++'s classes, of which the ranks' own are made; groups by name for each thread; what is asked before "
            "NCCL; tensors that C++ brings to a group; a mesh is a rank's, not a thread's (distributed)",
            probes.ranks_of_threads),
    Private("torch._C._distributed_c10d._register_process_group, torch._C._distributed_c10d._unregister_process_group, "
            "torch.distributed.tensor._collective_utils._resolve_process_group, "
            "torch.distributed._functional_collectives._resolve_group",
            "groups by name in all threads of a rank (distributed.threads.torch_patches)",
            lambda: asks(torch.distributed._functional_collectives.all_reduce, "_resolve_group")),
    Private("torch.library.Library._register_fake, torch.library.Library._destroy, "
            "torch._library.custom_ops.OPDEF_TO_LIB, _op_defs",
            "operators that each rank of a process defines (distributed.threads.libraries)",
            lambda: asks(torch.library.Library._destroy, "_op_defs")),
    Private("torch.distributed.distributed_c10d: _set_pg_timeout, _TORCHCOMM_AVAILABLE",
            "the timeout of groups of our own; who moves the tensors (distributed)",
            lambda: True),
    Private("torch._C._distributed_c10d: _dump_fr_trace, _dump_fr_trace_json",
            "a rank's recorded calls are handed out by them, with NCCL by _dump_nccl_trace (distributed.rank.flight)",
            lambda: not torch.distributed.is_available()
            or "onlyActive" in (torch._C._distributed_c10d._dump_fr_trace.__doc__ or "")),
    Private("torch.distributed.distributed_c10d.has_torch_function",
            "asked by each collective whether somebody else answers it: the machine does not (distributed)",
            lambda: not torch.distributed.is_available() or asks(torch.distributed.all_reduce, "has_torch_function")),
    Private("torch.cuda: _lazy_init, _lazy_call", "a rank, or a process, uses its GPU from then on (distributed)",
            lambda: asks(torch.cuda.init, "_lazy_init") and asks(torch.cuda.manual_seed, "_lazy_call")),
    Private("torch.autograd.profiler: _prepare_profiler, _enable_profiler, _disable_profiler",
            "one rank at a time has it (distributed.threads.torch_patches)",
            probes.profilers),
    Private("the functions _wrapped_call_impl, _call_impl and _fn of torch",
            "stand between a collective and the user's line (distributed.calls.call)",
            probes.frames_between),
    Private("torch._C._DisableTorchDispatch",
            "a collective computes below the modes of its ranks (distributed.group.slot)",
            probes.below_modes),
    Private("torch.distributed.tensor._sharding_prop, its _dtensor_spec, _op_schema, _ops._math_ops._NormPartial and "
            "placement_types._StridedShard; of a DeviceMesh _flatten_rank_map, _layout, _device_type, _mesh_dim_names",
            "what DTensor works out of an operation, once for all ranks (distributed.threads.shardings)",
            probes.shardings),
    Private("torch.distributed._dist2", "refuses by itself; named in the list (distributed.fidelity)"),
    Private("of a torch._ops.OpOverload: _op_dk", "an operator runs by another key (machine.ops.mode)",
            lambda: asks(torch._ops.OpOverload.decompose, "_op_dk")),
    Private("torch.ops.c10d: _allgather_base_, _reduce_scatter_base_", "the names of collectives as operators"),
    Private("torch.ops._c10d_functional", "collectives that return tensors (machine.features.hollow)",
            lambda: hasattr(torch.ops._c10d_functional, "wait_tensor")),
    Private("torch.utils._python_dispatch: _get_current_dispatch_mode_stack, _pop_mode_temporarily",
            "dispatch modes are told of collectives, one after the other (distributed.group.dispatched)",
            probes.one_mode_below_another),
    Private("torch._C._ExcludeDispatchKeyGuard, torch._C.DispatchKeySet, torch._C.DispatchKey",
            "a collective writes without counting a change (distributed.group.slot)",
            probes.below_counting),
    Private("torch._C._current_graph_task_id",
            "whether a collective is called in backward (distributed, distributed.diagnosis.observer)",
            probes.in_backward),
    Private("_next_index and _dataset of a torch.utils.data.dataloader._BaseDataLoaderIter",
            "which rows a rank reads (distributed.diagnosis.observer)",
            probes.what_a_loader_reads),
    Private("torch.distributed.fsdp._fully_shard._fully_shard.fully_shard",
            "which weights are cut up (distributed.diagnosis.observer)",
            lambda: not torch.distributed.is_available() or resolve_name(
                "torch.distributed.fsdp._fully_shard._fully_shard").fully_shard is resolve_name(
                "torch.distributed.fsdp").fully_shard),
]  # fmt: skip


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
        print(f"{private.names}: {wrong}\n  {private.why} (since {private.since})")
    print(
        f"PyTorch {torch.__version__}: {len(moved)} of {len(PRIVATE)} private things that labkit rests on have moved"
    )
    return bool(moved)


if __name__ == "__main__":
    sys.exit(main())
