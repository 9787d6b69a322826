"""PyTorch's own tests of torch.distributed on the ranks of a simulated machine: what passes, and why the rest does not.

    python tests/conformance/pytorch_ranks.py PYTORCH --gpus 4 distributed/test_device_mesh.py

PYTORCH is PyTorch's source, of about the version in use; the files are those of its ``test`` folder (without any:
those of :data:`FILES`). PyTorch starts a process for every rank of a test; here each is a rank of a ``World``
(:mod:`labkit_ranks.threads.world`), which runs the same method of an instance of its own, and everything below
(init_process_group("nccl") too) is what a torchrun script meets. A class of tests is one for each rank: what a test
writes on its class stays its rank's.

A test that fails is run once more in a process of its own: if it passes there, another's changes in modules that all
ranks share were in its way, which is counted apart ("alone"). What fails twice is held against
``pytorch_ranks.toml``; what nothing there explains is what this is for. Not part of ``make test``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import functools
import importlib
import json
import os
import pkgutil
import re
import signal
import sys
import tempfile
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytorch_own as own

# What needs several ranks, or is of the parts that do; left out: rpc and elastic (real processes), torch.compile's
# own (dynamo, inductor), NCCL's own (symmetric memory, nvshmem, flight recorder, copy engines), UCC.
FILES = [
    f"distributed/{file}"
    for file in """
test_distributed_spawn.py test_c10d_common.py test_c10d_object_collectives.py test_c10d_ops_nccl.py
test_c10d_nccl.py test_c10d_gloo.py test_c10d_logger.py test_c10d_pypg.py test_collective_utils.py
test_composability.py test_control_collectives.py test_device_mesh.py test_dist2.py
test_functional_api.py test_functional_differentials.py test_c10d_functional_native.py test_multi_threaded_pg.py
test_pg_wrapper.py test_store.py test_serialization.py
algorithms/test_join.py algorithms/ddp_comm_hooks/test_ddp_hooks.py algorithms/quantization/test_quantization.py
optim/test_zero_redundancy_optimizer.py optim/test_named_optimizer.py optim/test_apply_optimizer_in_backward.py
_composable/test_checkpoint.py _composable/test_contract.py _composable/test_replicate.py
_composable/test_replicate_mixed_precision.py _composable/test_replicate_training.py
_composable/test_replicate_with_fsdp.py _composable/test_composability/test_2d_composability.py
_composable/test_composability/test_pp_composability.py
_composable/fsdp/test_fully_shard_autograd.py _composable/fsdp/test_fully_shard_clip_grad_norm_.py
_composable/fsdp/test_fully_shard_comm.py _composable/fsdp/test_fully_shard_dtensor.py
_composable/fsdp/test_fully_shard_extensions.py _composable/fsdp/test_fully_shard_frozen.py
_composable/fsdp/test_fully_shard_grad_scaler.py _composable/fsdp/test_fully_shard_ignore_params.py
_composable/fsdp/test_fully_shard_init.py _composable/fsdp/test_fully_shard_memory.py
_composable/fsdp/test_fully_shard_mixed_precision.py _composable/fsdp/test_fully_shard_overlap.py
_composable/fsdp/test_fully_shard_state.py _composable/fsdp/test_fully_shard_state_dict.py
_composable/fsdp/test_fully_shard_training.py
fsdp/test_checkpoint_wrapper.py fsdp/test_distributed_checkpoint.py fsdp/test_fsdp_apply.py
fsdp/test_fsdp_backward_prefetch.py fsdp/test_fsdp_checkpoint.py fsdp/test_fsdp_clip_grad_norm.py
fsdp/test_fsdp_comm.py fsdp/test_fsdp_comm_hooks.py fsdp/test_fsdp_core.py fsdp/test_fsdp_dtensor_state_dict.py
fsdp/test_fsdp_exec_order.py fsdp/test_fsdp_fine_tune.py fsdp/test_fsdp_flatten_params.py
fsdp/test_fsdp_freezing_weights.py fsdp/test_fsdp_fx.py fsdp/test_fsdp_grad_acc.py fsdp/test_fsdp_hybrid_shard.py
fsdp/test_fsdp_ignored_modules.py fsdp/test_fsdp_input.py fsdp/test_fsdp_memory.py fsdp/test_fsdp_meta.py
fsdp/test_fsdp_misc.py fsdp/test_fsdp_mixed_precision.py fsdp/test_fsdp_multiple_forward.py
fsdp/test_fsdp_multiple_wrapping.py fsdp/test_fsdp_optim_state.py fsdp/test_fsdp_overlap.py
fsdp/test_fsdp_pure_fp16.py fsdp/test_fsdp_sharded_grad_scaler.py fsdp/test_fsdp_state_dict.py
fsdp/test_fsdp_tp_integration.py fsdp/test_fsdp_traversal.py fsdp/test_fsdp_uneven.py
fsdp/test_fsdp_unshard_params.py fsdp/test_fsdp_use_orig_params.py fsdp/test_hsdp_dtensor_state_dict.py
fsdp/test_shard_utils.py fsdp/test_utils.py fsdp/test_wrap.py
tensor/debug/test_comm_mode.py tensor/debug/test_comm_mode_features.py tensor/debug/test_debug_mode.py
tensor/experimental/test_local_map.py tensor/experimental/test_register_sharding.py
tensor/experimental/test_tp_transform.py tensor/parallel/test_parallelize_api.py tensor/parallel/test_tp_examples.py
tensor/parallel/test_tp_random_state.py tensor/parallel/test_tp_style.py tensor/test_api.py tensor/test_attention.py
tensor/test_common_rules.py tensor/test_convolution_ops.py tensor/test_decompositions.py tensor/test_dtensor.py
tensor/test_dtensor_ops.py tensor/test_dtensor_testbase.py tensor/test_dynamic.py tensor/test_embedding_ops.py
tensor/test_experimental_ops.py tensor/test_init.py tensor/test_math_ops.py tensor/test_matrix_ops.py
tensor/test_op_schema.py tensor/test_op_strategy.py tensor/test_optimizers.py tensor/test_placement_types.py
tensor/test_pointwise_ops.py tensor/test_random_ops.py tensor/test_redistribute.py
tensor/test_single_dim_strategy.py tensor/test_tensor_ops.py tensor/test_utils.py tensor/test_view_ops.py
pipelining/test_backward.py pipelining/test_dtensor_pp_integration.py pipelining/test_dtensor_pp_unit_tests.py
pipelining/test_microbatch.py pipelining/test_pipe.py pipelining/test_schedule.py
pipelining/test_schedule_multiproc.py pipelining/test_stage.py pipelining/test_unflatten.py
checkpoint/e2e/test_e2e_save_and_load.py checkpoint/e2e/test_fine_tuning.py checkpoint/e2e/test_fsdp_ep.py
checkpoint/fsdp/test_fsdp_dsd.py checkpoint/test_checkpoint.py checkpoint/test_compatibility.py
checkpoint/test_consolidate_hf_safetensors.py checkpoint/test_dedup_tensors.py checkpoint/test_dtensor_checkpoint.py
checkpoint/test_dtensor_resharding.py checkpoint/test_file_system_checkpoint.py
checkpoint/test_file_system_checkpoint_cpu.py checkpoint/test_format_utils.py checkpoint/test_fsdp_model_state.py
checkpoint/test_fsdp_optim_state.py checkpoint/test_fsdp_tp_checkpoint_conversion.py checkpoint/test_fsspec.py
checkpoint/test_hf_safetensor_e2e.py checkpoint/test_hf_storage.py checkpoint/test_hsdp_checkpoint.py
checkpoint/test_nested_dict.py checkpoint/test_pg_transport.py checkpoint/test_planner.py
checkpoint/test_save_load_api.py checkpoint/test_state_dict.py checkpoint/test_state_dict_stager.py
checkpoint/test_state_dict_utils.py checkpoint/test_tp_checkpoint.py checkpoint/test_traverse.py
checkpoint/test_utils.py
_shard/sharded_optim/test_sharded_optim.py _shard/sharded_tensor/ops/test_binary_cmp.py
_shard/sharded_tensor/ops/test_embedding.py _shard/sharded_tensor/ops/test_embedding_bag.py
_shard/sharded_tensor/ops/test_init.py _shard/sharded_tensor/ops/test_tensor_ops.py
_shard/sharded_tensor/test_sharded_tensor.py _shard/sharded_tensor/test_sharded_tensor_reshard.py
_shard/sharding_plan/test_sharding_plan.py _shard/sharding_spec/test_sharding_spec.py _shard/test_sharder.py
""".split()
]

# test_distributed_spawn.py is run by PyTorch once for each of these.
VARIABLES = {"BACKEND": "nccl", "WORLD_SIZE": "4", "TEMP_DIR": tempfile.gettempdir()}

ALONE = "alone"
REASONS = Path(__file__).with_suffix(".toml")


# ------------------------------------------------------------------------------------------ in the worker's process


class Report(own.Report):
    """Says of a test's end how many ranks it had; leaves out the tests of LocalTensor, which has ranks of its own."""

    seconds = 90.0

    def startTest(self, test: unittest.TestCase) -> None:
        if self.machine is not None:  # which the ranks of another test may have taken from this thread
            self.machine.use_in_thread().__enter__()
            # What is there before the test, where its class leaves out their setUp, which counts it.
            modes = sys.modules["torch"]._C._len_torch_function_stack()
            type(test)._prev_torch_function_mode_stack_len = modes
        super().startTest(test)

    def say(self, **what: Any) -> None:
        if "tests" in what:
            what["tests"] = [name for name in what["tests"] if "LocalTensor" not in name]
        ranks = importlib.import_module("labkit_ranks.testing.started_ranks").Ranks
        if "begins" in what:
            ranks.largest = 0
            faulthandler.dump_traceback_later(0.9 * self.seconds)
        if "ends" in what:
            faulthandler.cancel_dump_traceback_later()
            what["ranks"] = ranks.largest
        super().say(**what)


def on_ranks() -> None:
    """PyTorch's classes of tests, which start processes or threads, run on ranks instead, as `pytest --gpus` does."""
    from labkit_ranks.testing import suites

    suites.begin()
    importlib.import_module("torch.testing._internal.common_distributed")


def _in_one_rank() -> None:
    """Tests without ranks that make a group of their own, as a process that torchrun did not start can."""
    from labkit_ranks.threads.world import World

    run = unittest.TestCase.run

    def run_in_rank(self: Any, result: Any = None) -> Any:
        with contextlib.closing(World(1)) as world:
            return world.run(lambda _: run(self, result))[0]

    unittest.TestCase.run = run_in_rank


# What tests of FSDP put something in place of, by common_fsdp's functions of these names.
_REPLACED = {
    "patch_all_gather": "torch.distributed:all_gather_single",
    "patch_reduce_scatter": "torch.distributed:reduce_scatter_single",
    "patch_all_reduce": "torch.distributed:all_reduce",
    "patch_foreach_all_gather": "torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_all_gather",
    "patch_foreach_reduce": "torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_reduce",
    "patch_unshard": "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.unshard",
    "patch_reshard": "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.reshard",
    "patch_post_backward": "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
    "patch_register_post_backward_hook_backward": (
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:RegisterPostBackwardFunction.backward"
    ),
}


def _replacing() -> None:
    """Lets what a rank's test puts in the place of a function hold for that rank alone, as in a process of its own."""
    from torch.testing._internal import common_fsdp

    for name, place in _REPLACED.items():
        path, _, attribute = place.rpartition(".") if "." in place.partition(":")[2] else place.partition(":")
        setattr(common_fsdp, name, _replacement(pkgutil.resolve_name(path), attribute))


def _replacement(owner: Any, name: str) -> Any:
    from labkit_ranks.rank.rank import current_thread_rank

    real = getattr(owner, name)
    own: dict[Any, Any] = {}
    inside: set[Any] = set()

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        rank = current_thread_rank()
        if rank not in own or rank in inside:  # what the replacement calls is the real one
            return real(*args, **kwargs)
        inside.add(rank)
        try:
            return own[rank](*args, **kwargs)
        finally:
            inside.discard(rank)

    @contextlib.contextmanager
    def replaced(new: Any) -> Any:
        rank = current_thread_rank()
        own[rank] = new
        setattr(owner, name, call)
        try:
            yield
        finally:
            del own[rank]
            if not own:
                setattr(owner, name, real)

    return replaced


# ------------------------------------------------------------------------------------------------- in this process


class Forked:
    """A process that is a copy of this one, with PyTorch imported; stands for ``subprocess.Popen``."""

    def __init__(self, begin: Callable[[], None], log: Any) -> None:
        entry, self._write = os.pipe()
        self.stdin = os.fdopen(self._write, "wb")
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            os.close(entry)
            return
        try:
            os.setsid()
            os.dup2(entry, 0)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(log.fileno(), 2)
            sys.stdin = open(0)  # noqa: SIM115 (as long as the process)
            begin()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def wait(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.stdin.close()


class Worker(own.Worker):
    """As theirs, without importing PyTorch anew for each file."""

    def __init__(self, file: str, gpus: int, options: Any) -> None:
        read, write = os.pipe()

        def begin() -> None:
            os.close(read)
            os.environ.update(own.environment(gpus, options))
            os.chdir(options.folder)
            mine = argparse.Namespace(**{**vars(options), "files": [file], "gpus": gpus, "worker": write})
            own.work(mine, ready, Report, importing)

        self.process = Forked(begin, options.log)
        os.close(write)
        self._lines = os.fdopen(read, "rb", buffering=0)
        self._rest = b""


def preload() -> None:
    """Imports without a machine what every file imports, but for the modules that look for GPUs."""
    for name in ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp",
                 "torch.distributed.tensor.parallel", "labkit_ranks.threads.world"):  # fmt: skip
        importlib.import_module(name)


def run_all(options: Any) -> int:
    counts: collections.Counter[str] = collections.Counter()
    skips: collections.Counter[str] = collections.Counter()
    preload()
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as log:
        options.folder, options.log = folder, sys.stderr if options.show else log
        for file in options.files:
            names = None if options.again is None else own.failed_in(options.again, file)
            if names == set():
                continue
            found = own.run_file(file, options.gpus, names, options, Worker)
            counts += (here := outcomes(file, found, skips, options))
            print(f"{file}: {summary(here)}", flush=True)
    print(f"\n{options.gpus} GPUs, {len(options.files)} files: {summary(counts)}")
    for why, number in skips.most_common(12):
        print(f"  {number} skipped: {why}")
    return bool(counts[own.UNEXPLAINED])


def outcomes(
    file: str, found: dict[str, tuple[str, str]], skips: Any, options: Any
) -> collections.Counter[str]:
    """The tests of a file counted by category; what failed is said, and everything is kept for --save."""
    here: collections.Counter[str] = collections.Counter()
    failed = [name for name, (outcome, _) in found.items() if outcome == own.FAILED and name != "import"]
    again: dict[str, tuple[str, str]] = {}
    if failed and len(found) > 1:
        options.alone = True
        again = own.run_file(file, options.gpus, failed[: options.most_again], options, Worker)
        options.alone = False
    for name, (outcome, text) in found.items():
        category, why = outcome, ""
        if outcome == own.FAILED and again.get(name, ("",))[0] == own.PASSED:
            category, why = ALONE, told(text)
        elif outcome == own.FAILED:
            known = own.explained(f"{file}::{name}", text, REASONS)
            category, why = known or (own.UNEXPLAINED, told(text))
        elif outcome == own.SKIPPED:
            skips[text.splitlines()[-1][:100] if text else ""] += 1
        if category not in (own.PASSED, own.SKIPPED):
            print(f"{category:12} {file}::{name}  {why}", flush=True)
            if options.show and category == own.UNEXPLAINED:
                print(text, flush=True)
        here[category] += 1
        if options.save:
            with options.save.open("a") as saved:
                line = {
                    "gpus": options.gpus, "test": f"{file}::{name}", "category": category, "why": why,
                    "text": text,
                }  # fmt: skip
                saved.write(json.dumps(line) + "\n")
    return here


def told(text: str) -> str:
    """In a line, what the first rank that failed raised."""
    first = re.split(r"^Rank \d+:$", text.partition("RuntimeError: Rank ")[2] or text, flags=re.MULTILINE)[0]
    lines = [line for line in first.strip().splitlines() if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
    return (lines or [own.last_line(text)])[-1][:240]


def summary(counts: collections.Counter[str]) -> str:
    return f"{own.summary(counts)}, {counts[ALONE]} alone"


def ready(options: Any) -> Any:
    """The machine, and PyTorch's classes of tests on ranks."""
    machine = own.opened(options)
    Report.seconds = options.seconds
    faulthandler.enable()
    with importing():
        on_ranks()
        if options.files[0].endswith("fsdp/test_wrap.py"):
            _in_one_rank()
        if "fsdp" in options.files[0] or "_composable" in options.files[0]:
            _replacing()
    return machine


def importing() -> Any:
    """Lets a file of tests see NCCL while it is imported, as it would where there are ranks."""
    from labkit_ranks.threads.world import World

    return World(1)


def main() -> int:
    assert __doc__ is not None
    parser = own.command_line(__doc__, FILES, script=__file__, gpus=4)
    parser.add_argument(
        "--most-again", type=int, default=40, help="the most of one file that are run again alone"
    )
    options = own.asked(parser)
    options.variables = VARIABLES
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
