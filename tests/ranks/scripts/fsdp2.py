"""fully_shard (FSDP2): resharding or not, mixed precision, HSDP on a mesh, accumulation, clipping, state dicts."""

import torch
from script_ends import begin, end
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

STEPS = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 20), nn.Linear(20, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), Block(), Block(), nn.Linear(8, 3))


def make_rows(rank, step):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def main():
    rank, size, device = begin()
    out = {}
    flat = init_device_mesh("cuda", (size,))
    hybrid = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, options in {
        "resharded": {"mesh": flat},
        "kept": {"mesh": flat, "reshard_after_forward": False},
        "hybrid": {"mesh": hybrid},
        "bf16": {"mesh": flat, "mp_policy": half},
        "accumulated": {"mesh": flat},
    }.items():
        with torch.device("meta"):
            model = make_model()
        for block in model[1:3]:
            fully_shard(block, **options)
        fully_shard(model, **options)
        model.to_empty(device=device)
        whole = make_model().state_dict() if rank == 0 else {}
        set_model_state_dict(
            model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        parts, norms = 2 if name == "accumulated" else 1, []
        for step in range(STEPS):
            optimizer.zero_grad()
            for part in range(parts):
                model.set_requires_gradient_sync(part == parts - 1)
                loss = model(make_rows(rank, step * parts + part).to(device)).square().mean() / parts
                loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            norms.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).item())
            optimizer.step()
        out[name] = {"weights": [p.full_tensor().detach() for p in model.parameters()], "norms": norms}
        out[name]["local"] = [tuple(p.to_local().shape) for p in model.parameters()]
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            out[name]["full"] = list(full.values())
    end(out)


if __name__ == "__main__":
    main()
