"""PyTorch's own tests of torch.distributed on the ranks of a simulated machine: what passes, and why the rest does not.

    python tests/conformance/pytorch_ranks.py PYTORCH --gpus 4 distributed/test_device_mesh.py

PYTORCH is PyTorch's source, of about the version in use; the files are those of its ``test`` folder (without any:
all of ``distributed`` but those of :data:`LEFT_OUT`). PyTorch starts a process for every rank of a test; here each is
a rank of a ``World`` (:mod:`labkit_ranks.threads.world`), which runs the same method of an instance of its own, and
everything below (init_process_group("nccl") too) is what a torchrun script meets. A class of tests is one for each
rank: what a test writes on its class stays its rank's.

A test that fails is run once more in a process of its own: if it passes there, another's changes in modules that all
ranks share were in its way, which is counted apart ("alone"). What fails twice is held against
``pytorch_ranks.toml``; what nothing there explains is what this is for. Not part of ``make test``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import pkgutil
import re
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytorch_own as own

# Of the files of test/distributed: real processes (rpc, elastic, launchers), torch.compile's own, NCCL's own (symmetric
# memory, copy engines, flight recorder), other backends, and arithmetic of layouts.
LEFT_OUT = re.compile(
    r"/(rpc|elastic|launcher|bin|_tools|flight_recorder|nn|_pycute|_pipeline|_experimental)/|compil|dynamo|inductor"
    r"|local_tensor|nvshmem|symm|copy_engine|p2p_ipc|nccl_window|_ucc|_xccl|cute_layout"
)


def files_of(pytorch: Path) -> list[str]:
    """The files of PyTorch's tests that need several ranks, or are of the parts that do."""
    folder = pytorch / "test"
    found = (path.relative_to(folder).as_posix() for path in (folder / "distributed").rglob("test_*.py"))
    return sorted(file for file in found if not LEFT_OUT.search(file))


# test_distributed_spawn.py is run by PyTorch once for each of these.
VARIABLES = {"BACKEND": "nccl", "WORLD_SIZE": "4", "TEMP_DIR": tempfile.gettempdir()}

REASONS = Path(__file__).with_suffix(".toml")


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
    """PyTorch's classes of tests, which start processes, run on ranks instead, as `pytest --gpus` does."""
    from labkit_ranks.testing import suites

    suites.begin()


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


def alone(file: str, failures: dict[str, str], options: Any) -> dict[str, tuple[str, str]]:
    """What is known of failures, name -> (category, why): that the test passes alone, or a reason."""
    names = [name for name in failures if name != "import"][: options.most_again]
    again = {}
    if names:
        options.alone = True
        again = own.run_file(file, options.gpus, names, options)
        options.alone = False
    known = {name: own.explained(f"{file}::{name}", text, REASONS) for name, text in failures.items()}
    for name, (outcome, _) in again.items():
        if outcome == own.PASSED:
            known[name] = own.ALONE_PASSED, told(failures[name])
    return {name: found for name, found in known.items() if found}


def told(text: str) -> str:
    """In a line, what the first rank that failed raised."""
    first = re.split(r"^Rank \d+:$", text.partition("RuntimeError: Rank ")[2] or text, flags=re.MULTILINE)[0]
    lines = [line for line in first.strip().splitlines() if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
    return (lines or [own.last_line(text)])[-1][:240]


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


@contextlib.contextmanager
def importing() -> Any:
    """Lets a file of tests see NCCL while it is imported, as it would where there are ranks."""
    from labkit_ranks.testing import suites
    from labkit_ranks.threads.world import World

    with World(1):
        yield
    suites.change_test_classes()


def main() -> int:
    assert __doc__ is not None
    parser = own.command_line(__doc__, [], gpus=4)
    parser.add_argument(
        "--most-again", type=int, default=40, help="the most of one file that are run again alone"
    )
    parser.set_defaults(
        ready=ready, reporter=Report, importing=importing, known=alone, told=told, variables=VARIABLES
    )
    options = own.asked(parser)
    options.files = options.files or files_of(options.pytorch)
    for name in ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp",
                 "torch.distributed.tensor.parallel", "labkit_ranks.threads.world"):  # fmt: skip
        importlib.import_module(name)  # what every file imports, but for the modules that look for GPUs
    return own.everything(options)


if __name__ == "__main__":
    sys.exit(main())
