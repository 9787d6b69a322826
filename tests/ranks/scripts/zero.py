"""ZeroRedundancyOptimizer: each rank steps its share, all end with the weights of the ordinary optimizer."""

import torch
import torch.distributed as dist
from script_ends import begin, end
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 4


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 12), nn.GELU(), nn.Linear(12, 2))


def make_rows(rank, step):
    return torch.randn(3, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def main():
    rank, size, device = begin()
    out = {}
    for name, of, options in (
        ("adam", torch.optim.Adam, {"lr": 0.01}),
        ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        ("adam as buckets", torch.optim.Adam, {"lr": 0.01, "parameters_as_bucket_view": True}),
    ):
        model = DDP(make_model().to(device), device_ids=[device.index])
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=of, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(make_rows(rank, step).to(device)).square().mean().backward()
            optimizer.step()
            schedule.step()
        out[name] = list(model.module.state_dict().values())

        optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            state = optimizer.state_dict()["state"]
            key = "momentum_buffer" if of is torch.optim.SGD else "exp_avg"
            out[f"{name}, consolidated"] = [state[k][key] for k in sorted(state)]
        held = sum(t.numel() for held in optimizer.optim.state.values() for t in held.values() if t.dim() > 0)
        counts = [None] * size
        dist.all_gather_object(counts, held)
        out[f"{name}, elements held"] = sum(counts)
        assert max(counts) < sum(counts)

    # With inputs that end early: whoever owns a parameter steps it for all.
    model = DDP(make_model().to(device), device_ids=[device.index], gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for step in range(rank + 1):
            optimizer.zero_grad()
            model(make_rows(rank, step).to(device)).square().mean().backward()
            optimizer.step()
    everyone = [None] * size
    dist.all_gather_object(everyone, [p.tolist() for p in model.parameters()])
    out["joined alike"] = all(one == everyone[0] for one in everyone)
    end(out)


if __name__ == "__main__":
    main()
