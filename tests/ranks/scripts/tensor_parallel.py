"""Tensor and sequence parallel by parallelize_module, alone and with FSDP2 on a mesh of two dimensions."""

import torch
from script_ends import begin, end
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

STEPS, WORDS = 2, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, 8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 24), nn.Linear(24, 8), nn.Linear(8, WORDS)

    def forward(self, ids):
        x = self.words(ids)
        return self.head(x + self.down(torch.relu(self.up(self.norm(x)))))


def make_model():
    torch.manual_seed(0)
    return Model()


def make_ids(replica, step):
    return torch.randint(WORDS, (2, 8), generator=torch.Generator().manual_seed(100 * step + replica))


def main():
    _, size, _ = begin()
    out = {}
    tensor = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    sequence = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallel_loss = tensor | {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    line = init_device_mesh("cuda", (size,), mesh_dim_names=("tp",))
    grid = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("dp", "tp"))
    for name, mesh, plan in (
        ("tensor", line, tensor),
        ("sequence", line, sequence),
        ("loss", line, parallel_loss),
        ("sharded too", grid, sequence),
    ):
        model = make_model().cuda()
        parallelize_module(model, mesh["tp"], plan)
        if plan is sequence:
            parallelize_module(model.up, mesh["tp"], ColwiseParallel())
        if mesh is grid:
            fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        losses = []
        for step in range(STEPS):
            ids = make_ids(mesh["dp"].get_local_rank() if mesh is grid else 0, step).cuda()
            optimizer.zero_grad()
            logits = model(ids)
            if name == "loss":
                with loss_parallel():
                    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
                    loss.backward()
            else:
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
                loss.backward()
            optimizer.step()
            losses.append(float(loss.full_tensor() if hasattr(loss, "full_tensor") else loss))
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        out[name] = {"weights": [p.detach() for p in whole], "losses": losses}
    end(out)


if __name__ == "__main__":
    main()
