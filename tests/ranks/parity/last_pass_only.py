"""A pipeline that drops the gradients of earlier micro-batches when it prepares its stages anew."""
# cause: backward
# source: NVIDIA-NeMo/Automodel#3530, 2026-08-13
# layouts: --pp 1 ::: --pp 2

import argparse

from parity_parts import F, nn, rank, torch
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

parser = argparse.ArgumentParser()
parser.add_argument("--pp", type=int)
stages = parser.parse_args().pp
torch.manual_seed(0)
parts = nn.ModuleDict({"0": nn.Sequential(nn.Linear(6, 16), nn.Tanh()), "1": nn.Linear(16, 4)})
x, y = torch.randn(16, 6), torch.randint(4, (16,))
model = nn.Sequential(*parts.values()) if stages == 1 else parts[str(rank)]


def loss_of(scores, target):
    return F.cross_entropy(scores, target) / 2


optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for _ in range(4):
    optimizer.zero_grad()
    for some, target in zip(x.chunk(2), y.chunk(2), strict=True):
        if stages == 1:
            loss_of(model(some), target).backward()
            continue
        stage = PipelineStage(model, rank, stages, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_of)
        kept = []  # broken
        # repaired: kept = [parameter.grad for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = None
        schedule.step(*([some] if rank == 0 else []), **({"target": target} if rank else {}))
        for parameter, gradient in zip(model.parameters(), kept, strict=False):
            parameter.grad += 0 if gradient is None else gradient
    optimizer.step()
