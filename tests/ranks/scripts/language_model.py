"""A small GPT trained as people train them: accumulation, autocast, a scaler, clipping, a schedule, rank 0 saves."""

import contextlib
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

WORDS, LENGTH, WIDTH, ACCUMULATE, STEPS, BATCH = 17, 8, 16, 2, 2, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids, targets):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.cross_entropy(self.head(x).float().flatten(0, 1), targets.flatten())


def make_ids(rank, step):
    g = torch.Generator().manual_seed(100 * step + rank)
    ids = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=g)
    return ids[:, :-1], ids[:, 1:]


def learning_rate(step):
    return 0.01 * (1 + math.cos(math.pi * step / STEPS))


def main():
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(device)
    torch.manual_seed(1337)
    out = {}
    for name, dtype in (("float32", None), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        model = DDP(GPT().to(device), device_ids=[int(os.environ["LOCAL_RANK"])])
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=False)
        scaler, losses = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16, init_scale=256.0), []
        autocast = torch.autocast("cuda", dtype=dtype) if dtype else contextlib.nullcontext()
        for step in range(STEPS):
            total = torch.zeros((), device=device)
            for part in range(ACCUMULATE):
                ids, targets = (
                    t.to(device, non_blocking=True) for t in make_ids(rank, step * ACCUMULATE + part)
                )
                model.require_backward_grad_sync = part == ACCUMULATE - 1
                with autocast:
                    loss = model(ids, targets) / ACCUMULATE
                total += loss.detach()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
            losses.append(total.item())
        out[name] = {"losses": losses, "weights": [p.detach() for p in model.parameters()]}
        if rank == 0:
            torch.save(model.module.state_dict(), f"{sys.argv[1]}/{name}.pth")
        dist.barrier()
        back = torch.load(f"{sys.argv[1]}/{name}.pth", map_location=device)
        assert all(torch.equal(back[k], v) for k, v in model.module.state_dict().items())
    torch.save(out, f"{sys.argv[1]}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
