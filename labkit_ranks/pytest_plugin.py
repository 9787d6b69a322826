"""pytest's plugin, on where labkit is installed: ``@pytest.mark.ranks(4)`` runs a test on four simulated ranks.

Nothing of torch is imported before the first such test. :mod:`labkit_ranks.testing` does the rest.
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
    """The number of the rank that runs the test."""
    return int(_told("RANK"))


@pytest.fixture
def world_size() -> int:
    """How many ranks run the test."""
    return int(_told("WORLD_SIZE"))


@pytest.fixture
def device() -> Any:
    """The rank's own GPU, a ``torch.device``; the CPU where pytest is a rank of torchrun and there are no GPUs."""
    import torch

    number = int(_told("LOCAL_RANK"))
    return torch.device("cuda", number) if torch.cuda.is_available() else torch.device("cpu")


def _told(name: str) -> str:
    """What torchrun tells a rank."""
    if name not in os.environ:
        pytest.fail(
            say(
                en="rank, world_size and device are a rank's: mark the test with @pytest.mark.ranks(4)",
                zh="rank、world_size、device 只有 rank 才有：请给测试加上 @pytest.mark.ranks(4)",
            ),
            pytrace=False,
        )
    return os.environ[name]
