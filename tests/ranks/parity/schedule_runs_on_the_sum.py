# cause: denominator
# layouts: 1, 2
# source: pytorch/torchtitan#2972, 2026-04-15

"""The pipeline's schedule runs backward on the summed loss; only the printed loss is divided by the targets."""

from parity_parts import F, nn, rank, torch, world
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
x, y = torch.randn(8, 8), torch.randint(4, (8,))


def summed(output, target):
    return F.cross_entropy(output, target, reduction="sum")  # broken
    # repaired: return F.cross_entropy(output, target, reduction="sum") / len(y)


if world == 1:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
else:
    cut = {0: model[:2], 1: model[2:]}[rank]
    optimizer = torch.optim.AdamW(cut.parameters(), lr=1e-2)
    stage = PipelineStage(cut, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=summed, scale_grads=False)
for step in range(5):
    optimizer.zero_grad()
    if world == 1:
        loss = F.cross_entropy(model(x), y, reduction="sum") / len(y)
        loss.backward()
    elif rank == 0:
        schedule.step(x)
    else:
        losses = []
        schedule.step(target=y, losses=losses)
        loss = sum(losses) / len(y)  # broken
        # repaired: loss = sum(losses)
    optimizer.step()
    if rank == world - 1:
        print(step, loss.item())
