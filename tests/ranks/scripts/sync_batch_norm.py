"""SyncBatchNorm: statistics and gradients of the joined batch, pieces of unequal length among them."""

import torch
from script_ends import begin, end
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6), nn.BatchNorm1d(6)
    )


def make_rows(rank, step, uneven=False):
    g = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(2 + rank if uneven else 3, 2, 5, 5, generator=g)


def main():
    rank, _, device = begin()
    out = {}
    for uneven in (False, True):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(make_model()).to(device)
        model = DDP(model, device_ids=[device.index])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            # A sum over rows: so each row weighs the same, however many a rank has.
            (model(make_rows(rank, step, uneven).to(device)) ** 4).sum().mul(0.01).backward()
            optimizer.step()
        name = "uneven" if uneven else "even"
        out[f"{name} state"] = list(model.module.state_dict().values())
        model.eval()
        out[f"{name} eval"] = model(make_rows(0, 9).to(device)).detach()
    end(out)


if __name__ == "__main__":
    main()
