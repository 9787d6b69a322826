"""The ten broken scripts of lesson 19: each is the function that every rank runs."""

# mypy: ignore-errors
# (Learners see this code and write no annotations here.)

import os
from contextlib import nullcontext

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
        if dist.get_rank() == 0:
            total, rows = torch.zeros(1).cuda(), torch.zeros(1).cuda()
            with torch.no_grad():
                for x, y in valid:
                    total += F.mse_loss(model.module(x.cuda()), y.cuda()) * len(x)
                    rows += len(x)
            dist.all_reduce(total)
            dist.all_reduce(rows)
            history.append(total / rows)
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
        dist.send(block, dst=right)
        dist.recv(received, src=left)
        block = received
        scores.append((query * block).mean())
    dist.destroy_process_group()
    return torch.stack(scores)


def finish(model, batches):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
    team = dist.new_group(list(range(first, first + size)))
    mean = x.to(device)
    dist.all_reduce(mean, group=team)
    mean /= size
    best = mean.clone()
    if rank == first:
        leaders = dist.new_group(list(range(0, world_size, size)))
        dist.all_reduce(best, op=dist.ReduceOp.MAX, group=leaders)
    dist.broadcast(best, src=first, group=team)
    return mean, best


def score(prompts, weight):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(f"cuda:{rank}")
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
        window = batches[first : first + 4]
        for number, (x, y) in enumerate(window, 1):
            last = number == len(window)
            loss = F.mse_loss(model(x.cuda()), y.cuda()) / len(window)
            with nullcontext() if last else model.no_sync():
                loss.backward()
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
            last = number == len(window)
            wait = isinstance(model, DDP) and not last
            with model.no_sync() if wait else nullcontext():
                loss = F.mse_loss(model(x.cuda()), y.cuda()) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor() for p in model.parameters()]


def shard(model, batches):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
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
        loss = F.cross_entropy(scores, y.cuda(), ignore_index=-100)
        (loss * world_size).backward()
    if dist.get_rank() == 0:
        print(f"{tokens.item()} tokens in {world_size} x {len(batches)} batches")
    return [p.grad for p in model.parameters()]


def denoise(seed, rows):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = nn.Linear(3, 3).cuda()
    read, drawn = [], []
    for _ in range(2):
        order = torch.randperm(len(rows))[rank::world_size]
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
