"""PyTorch's profiler is one for a process: one rank has it, the others are told, and nothing crashes."""

import json
import warnings

import torch
import torch.distributed as dist
from torch.profiler import profile

from labkit_ranks.threads.world import World


def test_ranks_that_profile_at_the_same_time(tmp_path, on_ranks):
    def work(rank):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with profile() as recorded:
                x = torch.ones(4, device="cuda") * 2
                dist.all_reduce(x)
        path = tmp_path / f"{rank.number}.json"
        recorded.export_chrome_trace(str(path))
        events = {event.key for event in recorded.key_averages()}
        texts = [str(each.message) for each in told if "profiles nothing" in str(each.message)]
        return "aten::mul" in events, texts, len(json.loads(path.read_text())["traceEvents"]) > 0

    found = on_ranks(work, 3)
    assert [each[0] for each in found] == [True, False, False]
    assert [each[2] for each in found] == [True, False, False]
    assert found[0][1] == []
    assert "rank 2 profiles nothing: rank 0 has PyTorch's profiler" in found[2][1][0]


def test_ranks_that_profile_one_after_the_other():
    def work(rank):
        with profile() as recorded:
            torch.ones(4) * 2
        return "aten::mul" in {event.key for event in recorded.key_averages()}

    with World(2) as world:
        assert world.run(work) == [True, True]
