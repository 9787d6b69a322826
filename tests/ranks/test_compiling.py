"""Scripts that compile go on: their code runs as it is, in PyTorch's own wrapper around a module, and this is said."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit_ranks.threads.world import World


def gradients(rank, compiled):
    torch.cuda.set_device(rank.number)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).cuda()
    model, loss = module, torch.square
    if compiled:
        model = torch.compile(module, mode="max-autotune")
        assert sorted(model.state_dict()) == [f"_orig_mod.{name}" for name in sorted(module.state_dict())]
        loss = torch.compile(fullgraph=True)(loss)
        module[1].compile()
        assert torch.compile(loss, disable=True) is loss
    model = DistributedDataParallel(model, device_ids=[rank.number])
    loss(model(torch.randn(5, 3, device="cuda") + rank.number)).sum().backward()
    return [parameter.grad.cpu() for parameter in module.parameters()]


def test_what_is_compiled_runs_as_it_is_and_says_so_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with World(2) as world:
            world.run(lambda rank: dist.init_process_group("nccl"))
            plain = world.run(lambda rank: gradients(rank, False))
            compiled = world.run(lambda rank: gradients(rank, True))
    for one, other in zip(plain, compiled, strict=True):
        assert all(map(torch.equal, one, other))
    assert len([each for each in told if "runs as it is, not compiled" in str(each.message)]) == 1


def test_mode_and_options_exclude_each_other():
    with World(1) as world, pytest.raises(RuntimeError, match="Either mode or options can be specified"):
        world.run(lambda rank: torch.compile(torch.square, mode="default", options={}))
