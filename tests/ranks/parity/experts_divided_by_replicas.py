# cause: denominator
# layouts: 1, 4
# source: pytorch/torchtitan#1551, 2025-08-11

"""Two replicas of two halves of the experts: gradients are averaged over the replicas, 2, not over all data, 4."""

from parity_parts import F, dist, nn, rank, torch, world

EXPERTS, HIDDEN, TOP = 8, 16, 2
EP = min(world, 2)
sharing = [dist.new_group(list(range(first, first + EP))) for first in range(0, world, EP)][rank // EP]
replicas = [dist.new_group(list(range(first, world, EP))) for first in range(EP)][rank % EP]
own = range(rank % EP * EXPERTS // EP, (rank % EP + 1) * EXPERTS // EP)


class Exchange(torch.autograd.Function):
    """All-to-all of equal blocks in the expert group; backward is the same exchange."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=sharing)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, HIDDEN), nn.Linear(HIDDEN, 4)
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.Parameter((torch.randn(EXPERTS, HIDDEN, HIDDEN) / 4)[own.start : own.stop].clone())

    def forward(self, x):
        h = self.inner(x)
        scores, chosen = self.gate(h).softmax(-1).topk(TOP, dim=-1)
        weights = torch.zeros(len(h), EXPERTS).scatter(1, chosen, scores)
        got = Exchange.apply(h.expand(EXPERTS, *h.shape)).view(EP, len(own), len(h), HIDDEN)
        out = F.gelu(torch.einsum("weth,eho->weto", got, self.experts))
        back = Exchange.apply(out.reshape(EXPERTS, len(h), HIDDEN))
        return self.head(h + torch.einsum("eth,te->th", back, weights))


torch.manual_seed(0)
model = Model()
x = torch.randn(32, 8)
y = x[:, :4].argmax(1)
x, y = x.chunk(world)[rank], y.chunk(world)[rank]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    for name, p in model.named_parameters():
        group = replicas if name == "experts" else None
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)  # broken
        # repaired: p.grad /= world
    optimizer.step()
