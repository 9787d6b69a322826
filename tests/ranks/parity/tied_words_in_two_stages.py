"""A pipeline whose first and last stage hold copies of one embedding, and do not add up the gradients."""
# cause: reduction
# source: uw-syfi/piper#13, 2026-07-17
# layouts: --pp 1 ::: --pp 2

import argparse

from parity_parts import F, dist, nn, rank, torch  # noqa: F401 (dist: repaired)
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

parser = argparse.ArgumentParser()
parser.add_argument("--pp", type=int)
stages = parser.parse_args().pp


class Model(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last, self.words = first, last, nn.Embedding(12, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        if self.first:
            x = torch.tanh(self.up(self.words(x)))
        return F.linear(self.down(x), self.words.weight) if self.last else x


torch.manual_seed(0)
model = Model(rank == 0, rank == stages - 1)
if stages > 1:
    delattr(model, "up" if rank else "down")
ids = torch.randint(12, (8, 6))
labels = (ids * 7 + 2) % 12


def loss_of(scores, target):
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


if stages > 1:
    schedule = Schedule1F1B(
        PipelineStage(model, rank, stages, torch.device("cpu")), n_microbatches=4, loss_fn=loss_of
    )
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    if stages == 1:
        loss_of(model(ids), labels).backward()
    else:
        schedule.step(*([ids] if rank == 0 else []), **({"target": labels} if rank else {}))
        # repaired: dist.all_reduce(model.words.weight.grad)
    optimizer.step()
