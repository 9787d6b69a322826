"""A pytest plugin, active once labkit is installed: ``@pytest.mark.ranks(4)`` runs a test on four simulated ranks.

torch is imported only for the first such test. :mod:`labkit_ranks.testing` runs the ranks.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from labkit.base.language import say


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(size, *, nodes=1, memory=None, gpu_model=None, processes=False): run the test on so many ranks of "
        "torch.distributed, each with a simulated GPU (labkit)",
    )
    if os.environ.get("LABKIT_TEST_REPORTS"):  # a rank of a test that has real processes
        from .testing.in_processes import Reporter

        config.pluginmanager.register(Reporter(config))


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("ranks")
    if mark is not None:
        from .testing import prepare_item

        prepare_item(item, mark)


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
