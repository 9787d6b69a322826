# cause labels_shifted_late: rows
# source: huggingface/transformers#48493, 2026-09-02
# cause ddp_over_one_rank: reduction
# source: ByteDance-Seed/VeOmni#1059, 2026-08-18
# cause positions_from_zero: forward
# source: vllm-project/speculators#871, 2026-08-02
# layouts: 1, 2

"""Context parallelism with three bugs.

Labels are shifted after the sequence is cut, so the last token of each piece has no target; DDP reduces over the data
group, which has one rank; positions are counted from 0 on each piece.
"""

from parity_parts import F, dist, nn, rank, torch, world
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """One causal attention; each rank has a piece of the sequence and gathers keys and values."""

    def __init__(self, vocabulary=16, hidden=32):
        super().__init__()
        self.inner, self.place = nn.Embedding(vocabulary, hidden), nn.Embedding(32, hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, ids):
        length = ids.shape[1]
        positions = torch.arange(length)  # broken positions_from_zero
        # repaired positions_from_zero: positions = rank * length + torch.arange(length)
        x = self.inner(ids) + self.place(positions)
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = (torch.cat(list(all_gather(t.contiguous())), 1) for t in (k, v))
        mask = torch.ones(length, k.shape[1]).tril(rank * length).bool()
        return self.head(x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


torch.manual_seed(0)
model = Model()
ids = torch.randint(16, (4, 32))
# repaired labels_shifted_late: labels = F.pad(ids[:, 1:], (0, 1), value=-100).chunk(world, 1)[rank]
ids = ids.chunk(world, 1)[rank]
labels = F.pad(ids[:, 1:], (0, 1), value=-100)  # broken labels_shifted_late
group = [dist.new_group([number]) for number in range(world)][rank]  # broken ddp_over_one_rank
# repaired ddp_over_one_rank: group = None
model = DistributedDataParallel(model, process_group=group)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    counted = (labels != -100).sum()
    dist.all_reduce(counted)
    losses = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum")
    loss = losses * world / counted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
