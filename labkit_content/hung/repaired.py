"""The ten scripts repaired, one way of several: the judge's reference, and the last hint of each."""

# mypy: ignore-errors
# (Learners see this code beside the broken scripts.)

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def validate(model, train, valid):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for epoch in range(2):
        for x, y in train:
            optimizer.zero_grad()
            F.mse_loss(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        total, rows = torch.zeros(1).cuda(), torch.zeros(1).cuda()
        with torch.no_grad():
            for x, y in valid:
                total += F.mse_loss(model.module(x.cuda()), y.cuda()) * len(x)
                rows += len(x)
        dist.all_reduce(total)
        dist.all_reduce(rows)
        history.append(total / rows)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {history[-1].item():.4f}")
    return history


def shift(query, block):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    query, block = query.cuda(), block.cuda()
    scores = [(query * block).mean()]
    for _ in range(world_size - 1):
        received = torch.empty_like(block)
        calls = [dist.P2POp(dist.isend, block, right), dist.P2POp(dist.irecv, received, left)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        block = received
        scores.append((query * block).mean())
    dist.destroy_process_group()
    return torch.stack(scores)


def finish(model, batches):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for x, y in batches:
            optimizer.zero_grad()
            F.mse_loss(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
    dist.destroy_process_group()
    return model.module.state_dict()


def teams(x, size):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=device)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first = rank // size * size
    for start in range(0, world_size, size):
        group = dist.new_group(list(range(start, start + size)))
        if start == first:
            team = group
    leaders = dist.new_group(list(range(0, world_size, size)))
    mean = x.to(device)
    dist.all_reduce(mean, group=team)
    mean /= size
    best = mean.clone()
    if rank == first:
        dist.all_reduce(best, op=dist.ReduceOp.MAX, group=leaders)
    dist.broadcast(best, src=first, group=team)
    return mean, best


def score(prompts, weight):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    share = prompts[rank::world_size].to(device)
    scores = share @ weight.to(device)
    parts = [torch.empty_like(scores) for _ in range(world_size)]
    dist.all_gather(parts, scores)
    return torch.stack(parts, dim=1).flatten()


def accumulate(model, batches):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for first in range(0, len(batches), 4):
        *before, (x, y) = window = batches[first : first + 4]
        with model.no_sync():
            for a, b in before:
                (F.mse_loss(model(a.cuda()), b.cuda()) / len(window)).backward()
        (F.mse_loss(model(x.cuda()), y.cuda()) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.module.state_dict()


def defer(model, batches):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    for layer in model.cuda():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for first in range(0, len(batches), 4):
        window = batches[first : first + 4]
        for number, (x, y) in enumerate(window, 1):
            model.set_requires_gradient_sync(number == len(window))
            loss = F.mse_loss(model(x.cuda()), y.cuda()) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor() for p in model.parameters()]


def shard(model, batches):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    for layer in model.cuda():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for x, y in batches:
        loss = F.mse_loss(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor() for p in model.parameters()]


def scale(model, batches):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model, world_size = DDP(model.cuda()), dist.get_world_size()
    tokens = torch.stack([(y != -100).sum() for x, y in batches]).sum().cuda()
    dist.all_reduce(tokens)
    for x, y in batches:
        scores = model(x.cuda())
        loss = F.cross_entropy(scores, y.cuda(), ignore_index=-100, reduction="sum")
        (loss / tokens * world_size).backward()
    if dist.get_rank() == 0:
        print(f"{tokens.item()} tokens in {world_size} x {len(batches)} batches")
    return [p.grad for p in model.parameters()]


def denoise(seed, rows):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = nn.Linear(3, 3).cuda()
    shuffle = torch.Generator().manual_seed(seed)
    torch.manual_seed(1000 * seed + 1 + rank)
    read, drawn = [], []
    for _ in range(2):
        order = torch.randperm(len(rows), generator=shuffle)[rank::world_size]
        for part in order.split(2):
            x = rows[part].cuda()
            noise = torch.randn_like(x)
            F.mse_loss(model(x + noise), noise).backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
                p.data -= 0.1 * p.grad
                p.grad = None
            drawn.append(noise)
        read.append(order)
    return torch.stack(read), torch.stack(drawn), list(model.parameters())
