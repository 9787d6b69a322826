# cause: backward
# layouts: 1, 2
# source: huggingface/transformers#48687, 2026-09-10

"""Tokens of other ranks' experts run through a local expert with weight 0, which hides it in forward only."""

from parity_parts import Copy, F, Sum, nn, rank, torch, world

EXPERTS, HIDDEN, TOP = 8, 16, 2
own = range(rank * EXPERTS // world, (rank + 1) * EXPERTS // world)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, HIDDEN), nn.Linear(HIDDEN, 4)
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.Parameter((torch.randn(EXPERTS, HIDDEN, HIDDEN) / 4)[own.start : own.stop].clone())

    def forward(self, x):
        h = self.inner(x)
        scores, chosen = self.gate(h).softmax(-1).topk(TOP, dim=-1)
        scores, t = Copy.apply(scores), Copy.apply(h)
        elsewhere = (chosen < own.start) | (chosen >= own.stop)
        local = (chosen - own.start).clamp(0, len(own) - 1)
        weights = scores.clone()  # broken
        weights.data[elsewhere] = 0.0  # broken
        # repaired: weights = scores.masked_fill(elsewhere, 0.0)
        each = F.gelu(torch.einsum("th,tkho->tko", t, self.experts[local]))
        return self.head(h + Sum.apply((each * weights[..., None]).sum(1)))


torch.manual_seed(0)
model = Model()
x, y = torch.randn(32, 8), torch.randint(4, (32,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
