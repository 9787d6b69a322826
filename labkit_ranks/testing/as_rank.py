"""Run a test in a pytest that is itself a rank: ``torchrun --nproc-per-node 4 -m pytest``, also on real GPUs.

``labkit torchrun --processes --nproc-per-node 4 -m pytest`` does the same on simulated GPUs.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from labkit.base.language import say
from labkit.base.patches import Patch, Patches

from .item import CALLS_LOG, clean_traceback


def prepare_as_rank(item: Any, size: int) -> None:
    """Let this process, which is a rank, run ``item``."""
    here = int(os.environ["WORLD_SIZE"])

    def setup() -> None:
        if here != size:
            en = f"wants {size} ranks, and there are {here}"
            pytest.skip(say(en=en, zh=f"需要 {size} 个 rank，现在有 {here} 个"))
        _begin_rank(item.config)
        type(item).setup(item)

    def represent(caught: Any) -> Any:
        clean_traceback(caught.value)
        return type(item).repr_failure(item, pytest.ExceptionInfo.from_exception(caught.value))

    item.setup, item.repr_failure = setup, represent


def _begin_rank(config: pytest.Config) -> None:
    """Choose the GPU and make a process group, which a test's own ``init_process_group`` replaces."""
    logging.getLogger(CALLS_LOG).disabled = True
    if dist.is_initialized():
        return
    own, gpu = dist.init_process_group, None
    if torch.cuda.is_available():
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
    own("gloo" if gpu is None else "nccl", device_id=gpu)
    made = [dist.group.WORLD]

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if made and made.pop() is dist.group.WORLD:
            dist.destroy_process_group()
        own(*args, **kwargs)

    patches = Patches(lambda: [Patch(dist, "init_process_group", init_process_group)])
    patches.put_in()

    def end() -> None:
        patches.take_out()
        if dist.is_initialized():
            dist.destroy_process_group()

    config.add_cleanup(end)
