# cause: forward|reduction
# layouts: 1, 2
# source: NVIDIA/Megatron-LM#1498, 2025-03

"""The balance loss takes each rank's own share of rows per expert; it is not linear, so its mean is another loss."""

from parity_parts import F, dist, nn, rank, torch, world  # noqa: F401 (dist: repaired)
from torch.nn.parallel import DistributedDataParallel

EXPERTS, HIDDEN, TOP = 8, 16, 2


class Model(nn.Module):
    """A block of experts, all of them on each rank."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, HIDDEN), nn.Linear(HIDDEN, 4)
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, HIDDEN, HIDDEN) / 4)

    def forward(self, x):
        h = self.inner(x)
        scores = self.gate(h).softmax(-1)
        top, chosen = scores.topk(TOP, dim=-1)
        weights = torch.zeros(len(h), EXPERTS).scatter(1, chosen, top)
        each = F.gelu(torch.einsum("th,eho->teo", h, self.experts))
        counts = F.one_hot(chosen, EXPERTS).float().sum((0, 1))
        # repaired: dist.all_reduce(counts)
        share = counts / counts.sum()
        balance = EXPERTS * (share * scores.mean(0)).sum()
        return self.head(h + torch.einsum("teo,te->to", each, weights)), balance


torch.manual_seed(0)
model = DistributedDataParallel(Model())
x = torch.randn(32, 8)
x = x[x[:, 0].argsort()]  # rows of a kind come together, as in files
y = x[:, :4].argmax(1)
x, y = x.chunk(world)[rank], y.chunk(world)[rank]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    out, balance = model(x)
    loss = F.cross_entropy(out, y) + 0.1 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
