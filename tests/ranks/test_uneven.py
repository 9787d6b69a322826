"""DDP's ``join``: ranks with fewer batches answer for the others, dividing by all ranks or by those that are left."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel


@pytest.mark.parametrize(("by_all", "expected"), [(True, -1.5), (False, -2.0)])
def test_gradients_are_divided_by_all_ranks_or_by_those_that_still_have_batches(by_all, expected, on_ranks):
    def work(rank):
        model = torch.nn.Linear(1, 1, bias=False).cuda()
        model.weight.data.zero_()
        model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with model.join(divide_by_initial_world_size=by_all):
            for _ in range(1 + rank.number):
                optimizer.zero_grad()
                model(torch.ones(1, 1).cuda()).sum().backward()
                optimizer.step()
        return model.module.weight.item()

    assert on_ranks(work) == [expected, expected]
