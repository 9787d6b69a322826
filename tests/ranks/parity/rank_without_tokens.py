# cause: update|cut
# layouts: 1, 2
# source: NVIDIA-NeMo/Automodel#2995, 2026-07-09

"""A rank whose experts get no token touches one of their two weights; the other has no gradient and skips decay."""

from parity_parts import Copy, F, Sum, nn, rank, torch, world

EXPERTS, HIDDEN = 4, 16
own = range(rank * EXPERTS // world, (rank + 1) * EXPERTS // world)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, HIDDEN), nn.Linear(HIDDEN, 4)
        self.gate = nn.Linear(8, EXPERTS, bias=False)
        self.gate.weight.data = 3 * torch.eye(EXPERTS, 8)
        up, down = torch.randn(EXPERTS, HIDDEN, HIDDEN) / 4, torch.randn(EXPERTS, HIDDEN, HIDDEN) / 4
        self.up = nn.Parameter(up[own.start : own.stop].clone())
        self.down = nn.Parameter(down[own.start : own.stop].clone())

    def forward(self, x):
        h = self.inner(x)
        score, chosen = self.gate(x).softmax(-1).max(-1, keepdim=True)
        score, t = Copy.apply(torch.cat([score, h], 1)).split([1, HIDDEN], 1)
        mine = ((chosen >= own.start) & (chosen < own.stop)).nonzero()[:, 0]
        if len(mine):
            local = chosen[mine, 0] - own.start
            out = F.gelu(torch.einsum("th,tho->to", t[mine], self.up[local]))
            out = torch.einsum("to,toh->th", out, self.down[local]) * score[mine]
            out = torch.zeros_like(h).index_add(0, mine, out)
        else:
            out = t * 0 + self.up.sum() * 0  # broken
            # repaired: out = t * 0 + (self.up + self.down).sum() * 0
        return self.head(h + Sum.apply(out))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(160, 8)
y = x[:, 4:].argmax(1)
# rows of a kind come together, as in files: some batches visit the first experts only
order = x[:, :4].argmax(1).argsort(stable=True)
batches = [range(160), order[:32], range(160), order[:32], range(160), range(160)]
for batch in batches:
    loss = F.cross_entropy(model(x[list(batch)]), y[list(batch)])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
