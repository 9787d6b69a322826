"""DistributedDataParallel where ranks differ: unused and ignored parameters, uneven inputs, buffers, two modules."""

import torch
from script_ends import begin, end
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, left):
        return (self.left if left else self.right)(x).square().mean()


def make_rows(rank, step=0):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def main():
    rank, _, device = begin()
    device = torch.device("cuda", torch.cuda.current_device())
    out = {}

    torch.manual_seed(0)
    model = DDP(Branches().to(device), device_ids=[device.index], find_unused_parameters=True)
    model(make_rows(rank).to(device), left=rank == 0).backward()
    out["unused"] = {name: p.grad for name, p in model.module.named_parameters()}

    torch.manual_seed(0)
    model = DDP(Branches().to(device), device_ids=[device.index])
    model(make_rows(rank).to(device), left=True).backward()
    try:
        model(make_rows(rank).to(device), left=True)
    except RuntimeError as error:
        out["refused"] = "Expected to have finished reduction in the prior iteration" in str(error)

    # Rank r has r + 1 batches.
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 2).to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(rank + 1):
            optimizer.zero_grad()
            model(make_rows(rank, step).to(device)).square().mean().backward()
            optimizer.step()
    out["joined"] = list(model.module.state_dict().values())
    with model.join():
        for step in range(2 - rank % 2):
            model(make_rows(rank, step).to(device)).sum().backward()

    # Buffers are rank 0's at each forward that trains.
    torch.manual_seed(rank)
    model = DDP(nn.BatchNorm1d(4, affine=True).to(device), device_ids=[device.index])
    for step in range(3):
        model(make_rows(rank, step).to(device)).square().sum().backward()
    out["buffers"] = list(model.module.buffers())

    # Two modules, each with its own steps, as in a GAN.
    torch.manual_seed(rank)
    maker = DDP(nn.Linear(4, 4).to(device), device_ids=[device.index])
    judge = DDP(nn.Linear(4, 1).to(device), device_ids=[device.index])
    judge(maker(make_rows(rank).to(device)).detach()).mean().backward()
    judge.zero_grad()
    for parameter in judge.parameters():
        parameter.requires_grad_(False)
    judge(maker(make_rows(rank).to(device))).square().mean().backward()
    out["maker"] = [p.grad for p in maker.parameters()]

    model = Branches().to(device)
    DDP._set_params_and_buffers_to_ignore_for_model(
        model, ["right.weight", "right.bias", "never.weight", "never.bias"]
    )
    model = DDP(model, device_ids=[device.index])
    (model(make_rows(rank).to(device), left=True) + 0 * sum(p.sum() for p in model.parameters())).backward()
    out["logging"] = {
        key: model._get_ddp_logging_data()[key] for key in ("world_size", "backend_name", "rank")
    }
    end(out)


if __name__ == "__main__":
    main()
