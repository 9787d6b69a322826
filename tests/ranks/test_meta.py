"""Models begun on the meta device: their DTensors are there, until memory is made for them."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from labkit_ranks.threads.world import World


def test_fsdp2_from_the_meta_device():
    def work(rank):
        torch.cuda.set_device(rank.number)
        dist.init_process_group("nccl")
        with torch.device("meta"):
            model = torch.nn.Linear(4, 4, bias=False)
        fully_shard(model)
        before = model.weight.device.type, torch.cuda.memory_allocated()
        model.to_empty(device="cuda")
        with torch.no_grad():
            model.weight.to_local().fill_(1)
        model(torch.ones(1, 4, device="cuda")).sum().backward()
        return before, str(model.weight.device), model.weight.grad.to_local().tolist()

    with World(2) as world:
        found = world.run(work)
    assert [each[0] for each in found] == [("meta", 0)] * 2
    assert [each[1] for each in found] == ["cuda:0", "cuda:1"]
    assert found[0][2] == [[1.0] * 4] * 2


def test_swapped_parameters_get_their_gradients():
    """torch.utils.swap_tensors refuses whatever has weak references: the GPU's own are let go for it."""
    import labkit

    with labkit.simulate(1):
        first, second = (torch.nn.Parameter(torch.full((2,), x, device="cuda")) for x in (1.0, 2.0))
        torch.utils.swap_tensors(first, second)
        (first * 3).sum().backward()
        assert torch.cuda.memory_allocated() == 3 * 512
        assert (first.tolist(), first.grad.tolist()) == ([2, 2], [3, 3])
