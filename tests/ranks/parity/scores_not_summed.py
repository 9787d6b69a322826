# cause: reduction
# layouts: 1, 2
# source: huggingface/transformers#48205, 2026-08-22

"""Experts are split, tokens replicated, outputs summed. The scores' gradient is a part on each rank."""

from parity_parts import Copy, F, Sum, nn, rank, torch, world  # noqa: F401 (Copy: repaired)

EXPERTS, HIDDEN, TOP = 8, 16, 2
own = range(rank * EXPERTS // world, (rank + 1) * EXPERTS // world)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        whole = torch.randn(EXPERTS, HIDDEN, HIDDEN) / 4
        self.weight = nn.Parameter(whole[own.start : own.stop].clone())

    def forward(self, x):
        scores, chosen = self.gate(x).softmax(-1).topk(TOP, dim=-1)
        # repaired: scores, x = Copy.apply(scores), Copy.apply(x)
        out = torch.zeros_like(x)
        for expert in own:
            share = (scores * (chosen == expert)).sum(-1, keepdim=True)
            out = out + share * F.gelu(x @ self.weight[expert - own.start])
        return Sum.apply(out)


torch.manual_seed(0)
model = nn.ModuleDict({"inner": nn.Linear(8, HIDDEN), "moe": Experts(), "head": nn.Linear(HIDDEN, 4)})
x, y = torch.randn(32, 8), torch.randint(4, (32,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    h = model["inner"](x)
    loss = F.cross_entropy(model["head"](h + model["moe"](h)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
