# cause experts_not_divided: denominator
# source: NVIDIA/Megatron-LM#5956, 2026-07-22
# cause expert_norm_not_summed: norm
# source: NVIDIA-NeMo/Automodel#3816, 2026-09-05
# layouts: 1, 2

"""Experts hold the gradients of all ranks' rows after the exchange. Two bugs.

They are divided by the size of the expert group, 1; each rank clips by the norm of the shared weights and its own
experts, whose squares are not summed.
"""

from parity_parts import F, dist, exchange, nn, rank, torch, world

EXPERTS, HIDDEN, TOP = 8, 16, 2
own = range(rank * EXPERTS // world, (rank + 1) * EXPERTS // world)


class Model(nn.Module):
    """Each rank has some rows and some experts; rows visit all experts."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, HIDDEN), nn.Linear(HIDDEN, 4)
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.Parameter((torch.randn(EXPERTS, HIDDEN, HIDDEN) / 4)[own.start : own.stop].clone())

    def forward(self, x):
        h = self.inner(x)
        scores, chosen = self.gate(h).softmax(-1).topk(TOP, dim=-1)
        weights = torch.zeros(len(h), EXPERTS).scatter(1, chosen, scores)
        sent = h.expand(EXPERTS, *h.shape)  # expert, row, feature
        got = exchange(sent).view(world, len(own), len(h), HIDDEN)
        out = F.gelu(torch.einsum("weth,eho->weto", got, self.experts))
        back = exchange(out.reshape(EXPERTS, len(h), HIDDEN))
        return self.head(h + torch.einsum("eth,te->th", back, weights))


torch.manual_seed(0)
model = Model()
x, y = torch.randn(32, 8), torch.randint(4, (32,))
x, y = x.chunk(world)[rank], y.chunk(world)[rank]
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(5):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    for name, p in model.named_parameters():
        if name == "experts":
            p.grad /= 1  # broken experts_not_divided
            # repaired experts_not_divided: p.grad /= world
        else:
            dist.all_reduce(p.grad)
            p.grad /= world
    shared = sum(p.grad.square().sum() for name, p in model.named_parameters() if name != "experts")
    owned = model.experts.grad.square().sum()
    # repaired expert_norm_not_summed: dist.all_reduce(owned)
    norm = (shared + owned).sqrt()
    for p in model.parameters():
        p.grad *= 0.1 / norm.clamp(min=0.1)
    optimizer.step()
