"""Run tests on ranks, for :mod:`labkit_ranks.pytest_plugin`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from labkit.base.language import say

from .as_rank import prepare_as_rank
from .item import OnRanks, RanksMark


def prepare_item(item: Any, *args: Any, **kwargs: Any) -> None:
    """Replace the setup and run of ``item``, so that ranks run the test, by the arguments of its mark."""
    try:
        wanted, fault = RanksMark(*args, **kwargs), ""
    except (TypeError, ValueError) as error:
        fault = str(error).replace("RanksMark.__init__()", "ranks()")
    if fault:
        text = say(en=f"@pytest.mark.ranks(4): {fault}", zh=f"@pytest.mark.ranks(4)：{fault}")
        pytest.fail(text, pytrace=False)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        prepare_as_rank(item, wanted.size)
        return
    test = OnRanks(item, wanted)
    item.setup, item.runtest = test.setup, test.runtest
