"""Run tests on ranks, for :mod:`labkit_ranks.pytest_plugin`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from labkit.base.language import say

from .in_processes import InProcesses, prepare_as_rank
from .item import OnRanks, RanksMark


def prepare_item(item: Any, mark: pytest.Mark) -> None:
    """Replace the setup and run of ``item``, so that ranks run the test."""
    try:
        wanted, wrong = RanksMark(*mark.args, **mark.kwargs), ""
    except TypeError as error:
        wrong = str(error).replace("Wanted.__init__()", "ranks()")
    if wrong:
        text = say(en=f"@pytest.mark.ranks(4): {wrong}", zh=f"@pytest.mark.ranks(4)：{wrong}")
        pytest.fail(text, pytrace=False)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        prepare_as_rank(item, wanted.size)
        return
    test = (InProcesses if wanted.processes else OnRanks)(item, wanted)
    item.setup, item.runtest = test.setup, test.runtest
