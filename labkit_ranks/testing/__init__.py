"""Run tests on ranks, for :mod:`labkit_ranks.pytest_plugin`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from labkit.base.language import say

from ..notebook.session import check_ranks
from .as_rank import prepare_as_rank
from .item import OnRanks


def prepare_item(item: Any, *args: Any, **kwargs: Any) -> None:
    """Replace the setup and run of ``item``, so that ranks run the test, by the arguments of its mark."""
    try:
        size, *_ = check_ranks(*args, **kwargs)
    except (TypeError, ValueError) as error:
        fault = str(error).replace("check_ranks()", "ranks()")
        text = say(en=f"@pytest.mark.ranks(4): {fault}", zh=f"@pytest.mark.ranks(4)：{fault}")
        pytest.fail(text, pytrace=False)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        prepare_as_rank(item, size)
        return
    test = OnRanks(item, *args, **kwargs)
    item.setup, item.runtest = test.setup, test.runtest
