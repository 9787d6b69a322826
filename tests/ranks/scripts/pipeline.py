"""Pipeline parallel: GPipe, 1F1B, interleaved 1F1B, looped BFS; each stage's gradients as in the whole model."""

import torch
from script_ends import begin, end
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)

WIDTH, ROWS, PIECES = 6, 16, 8


def make_layers(count):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)))


def make_batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, WIDTH, generator=g), torch.randn(ROWS, WIDTH, generator=g)


def main():
    rank, size, device = begin()
    x, y = (t.to(device) for t in make_batch())
    out = {}

    def run(name, schedule, stages):
        losses = []
        first, last = any(s.is_first for s in stages), any(s.is_last for s in stages)
        result = schedule.step(*((x,) if first else ()), **({"target": y, "losses": losses} if last else {}))
        if last:
            out[f"{name}, output"], out[f"{name}, losses"] = result.detach(), torch.stack(losses).detach()
        out[f"{name}, gradients"] = {s.stage_index: [p.grad for p in s.submod.parameters()] for s in stages}

    for name, schedule in (("gpipe", ScheduleGPipe), ("1f1b", Schedule1F1B)):
        layer = make_layers(size)[rank].to(device)
        stage = PipelineStage(layer, rank, size, device)
        run(name, schedule(stage, PIECES, loss_fn=nn.functional.mse_loss), [stage])
    for name, schedule in (("interleaved", ScheduleInterleaved1F1B), ("looped", ScheduleLoopedBFS)):
        layers = make_layers(2 * size).to(device)
        stages = [PipelineStage(layers[k], k, 2 * size, device) for k in (rank, rank + size)]
        run(name, schedule(stages, PIECES, loss_fn=nn.functional.mse_loss), stages)

    end(out)


if __name__ == "__main__":
    main()
