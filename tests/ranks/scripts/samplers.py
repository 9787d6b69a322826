"""DistributedSampler and loaders: who reads which rows, by workers, epoch by epoch; random states of ranks."""

import random

import torch
import torch.distributed as dist
from script_ends import begin, end
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset


class Rows(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, k):
        return torch.tensor([k, k * k])


def main():
    rank, _, _ = begin()
    out = {}
    rows = Rows()
    for name, options in {
        "in order": {"shuffle": False},
        "shuffled": {"shuffle": True, "seed": 3},
        "dropped": {"shuffle": False, "drop_last": True},
    }.items():
        sampler = DistributedSampler(rows, **options)
        loader = DataLoader(rows, batch_size=4, sampler=sampler, pin_memory=True)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            out[f"{name}, epoch {epoch}"] = torch.cat([batch.cuda(non_blocking=True) for batch in loader])
    loader = DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows, shuffle=False), num_workers=2)
    out["by workers"] = torch.cat(list(loader))

    # Each rank has its own random states: what the others draw changes nothing.
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)
    draws = []
    for _ in range(3):
        draws.append((torch.rand(2), random.random(), torch.rand(2, device="cuda").shape))
        dist.barrier()
    out["own draws"] = [draw[:2] for draw in draws]
    torch.manual_seed(7)
    same = []
    for _ in range(3):
        same.append(torch.rand(2))
        dist.barrier()
    out["same draws"] = same
    torch.cuda.manual_seed(50 + rank)
    mine = torch.rand(3, device="cuda")
    dist.barrier()
    torch.cuda.manual_seed(50 + rank)
    out["cuda draws repeat"] = torch.equal(mine, torch.rand(3, device="cuda"))
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine.tolist())
    out["cuda draws differ"] = len({tuple(draw) for draw in everyone}) == len(everyone)
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=8, shuffle=True)
    out["shuffled alike"] = next(iter(loader))[0]
    end(out)


if __name__ == "__main__":
    main()
