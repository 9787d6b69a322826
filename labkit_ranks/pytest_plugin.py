"""A pytest plugin, active once labkit is installed: ``@pytest.mark.ranks(4)`` runs a test on four simulated ranks.

``pytest --gpus 4`` runs any tests on four simulated GPUs, by the environment of ``labkit run``: xdist's workers and
other child processes see the GPUs, too. torch is imported only by the tests or for the first marked test.
:mod:`labkit_ranks.testing` runs the ranks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from labkit.base.language import say
from simgpu.children import environment as children
from simgpu.children.bootstrap import sitecustomize

# Parameter of a test whose mark lists several numbers of ranks.
SIZE = "labkit_ranks_size"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    # Register the options only where they are used: a suite's own conftest.py may have one of these names.
    given = {argument.partition("=")[0] for argument in args}
    if not given & {"--gpus", "--help", "-h"}:
        return
    group = parser.getgroup("labkit", "simulated GPUs")
    group.addoption("--gpus", type=int, metavar="N", help="run the tests on N simulated GPUs (labkit)")
    group.addoption("--gpu-memory", metavar="SIZE", help='memory of each simulated GPU, such as "24 GiB"')
    group.addoption("--gpu-model", metavar="NAME", help="model of the simulated GPUs, such as h100")
    group.addoption(
        "--rank-processes",
        action="store_true",
        help="with --gpus: ranks of tests stay processes, instead of threads of one process",
    )
    options = parser.parse_known_args(args)
    if options.gpus is None:
        return
    try:
        asked = options.gpus, options.gpu_memory, None, options.gpu_model
        machine = children.describe_requested_machine(*asked)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"--gpus: {error}") from None
    entry = "triton_stand_in:offer" if options.rank_processes else "suites:begin"
    children.add_entry(f"labkit_ranks.testing.{entry}")
    beside = os.path.dirname(sys.executable)  # torchrun of an environment that is not active
    if beside not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join(filter(None, [os.environ.get("PATH"), beside]))
    path = children.with_bootstrap(os.environ.get(children.PATH))
    sitecustomize.follow(machine.text(), path, " ".join(children.ENTRIES))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("ranks")
    sizes = mark.args[0] if mark is not None and mark.args else None
    if isinstance(sizes, (list, tuple)):
        metafunc.fixturenames.append(SIZE)
        metafunc.parametrize(SIZE, sizes, ids=[f"ranks={size}" for size in sizes])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(size or [sizes], *, nodes=1, memory=None, gpu_model=None): run the test on so many ranks of "
        "torch.distributed, each with a simulated GPU (labkit)",
    )


def pytest_collection_finish() -> None:
    suites = sys.modules.get("labkit_ranks.testing.suites")  # imported under --gpus
    if suites is not None:
        suites.change_test_classes()


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("ranks")
    if mark is not None:
        from .testing import prepare_item

        args = list(mark.args)
        if hasattr(item, "callspec") and SIZE in item.callspec.params:
            args[0] = item.callspec.params[SIZE]
        prepare_item(item, *args, **mark.kwargs)


@pytest.fixture
def rank() -> int:
    """Return the number of the rank that runs the test."""
    return int(_rank_variable("RANK"))


@pytest.fixture
def world_size() -> int:
    """Return the number of ranks that run the test."""
    return int(_rank_variable("WORLD_SIZE"))


@pytest.fixture
def device() -> Any:
    """Return the rank's GPU, a ``torch.device``; the CPU for a rank of torchrun without GPUs."""
    import torch

    number = int(_rank_variable("LOCAL_RANK"))
    return torch.device("cuda", number) if torch.cuda.is_available() else torch.device("cpu")


def _rank_variable(name: str) -> str:
    """Return a variable that torchrun sets for each rank."""
    if name not in os.environ:
        pytest.fail(
            say(
                en="rank, world_size and device are a rank's: mark the test with @pytest.mark.ranks(4)",
                zh="rank、world_size、device 只有 rank 才有：请给测试加上 @pytest.mark.ranks(4)",
            ),
            pytrace=False,
        )
    return os.environ[name]
