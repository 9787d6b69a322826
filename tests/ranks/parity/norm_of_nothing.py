# cause: norm|update
# layouts: 1, 2
# source: huggingface/transformers#46113, 2026-05-20

"""Where gradients are sharded, a call that wants parameters gets gradients: the norm is right, nothing is clipped."""

from parity_parts import F, nn, rank, torch, world
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
if world > 1:
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
x = torch.randn(32, 8)
y = x[:, :4].argmax(1)
x, y = x.chunk(world)[rank], y.chunk(world)[rank]
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(5):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if world > 1:
        gradients = [p.grad for p in model.parameters()]
        norm = get_total_norm(gradients).full_tensor()
        clip_grads_with_norm_(gradients, 0.1, norm)  # broken
        # repaired: clip_grads_with_norm_(model.parameters(), 0.1, norm)
    else:
        norm = clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    if rank == 0:
        print(step, norm.item())
