"""DeviceMesh in one and two dimensions, and DTensor: every placement, redistribution, operators, gradients."""

import torch
import torch.distributed as dist
from script_ends import begin, end
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    randn,
    zeros,
)


def whole(rows=6, columns=5):
    return torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns) / 7


def attended():
    # CUDA's kernel for float32 takes heads of a multiple of 4 numbers; causal attention of DTensors has no other.
    return torch.linspace(-1, 1, 2 * 4 * 3 * 8).reshape(2, 4, 3, 8)


def main():
    rank, size, device = begin()
    out = {}

    mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("all",))
    out["coordinate"] = (mesh.get_local_rank(), mesh.size(), mesh.mesh.tolist(), mesh.device_type)
    grid = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("dp", "tp"))
    out["grid"] = (
        grid.get_coordinate(),
        grid["dp"].get_local_rank(),
        grid["tp"].size(),
        grid["dp", "tp"].ndim,
    )
    out["in a row"] = x = torch.tensor([float(rank)], device=device)
    dist.all_reduce(x, group=grid["tp"].get_group())
    out["in a column"] = x = torch.tensor([float(rank)], device=device)
    dist.all_reduce(x, group=grid.get_group("dp"))
    out["flattened"] = grid["dp", "tp"]._flatten("both").size()
    out["given"] = DeviceMesh("cuda", list(range(size))).get_group().size()

    kinds = {"shard 0": Shard(0), "shard 1": Shard(1), "replicate": Replicate()}
    for name, placement in kinds.items():
        x = distribute_tensor(whole().to(device), mesh, [placement])
        out[f"{name} local"], out[f"{name} full"] = x.to_local(), x.full_tensor()
        for other, target in kinds.items():
            out[f"{name} to {other}"] = x.redistribute(placements=[target]).to_local()
    partial = DTensor.from_local(whole().to(device) * (rank + 1), mesh, [Partial()])
    for other, target in kinds.items():
        out[f"partial to {other}"] = partial.redistribute(placements=[target]).to_local()
    out["partial avg"] = DTensor.from_local(
        whole().to(device) * (rank + 1), mesh, [Partial("avg")]
    ).full_tensor()
    out["partial max"] = DTensor.from_local(
        whole().to(device) * (rank + 1), mesh, [Partial("max")]
    ).full_tensor()
    twice = distribute_tensor(whole().to(device), grid, [Shard(0), Shard(1)])
    out["grid full"], out["grid local"] = twice.full_tensor(), tuple(twice.to_local().shape)
    out["grid turned"] = twice.redistribute(placements=[Shard(1), Replicate()]).full_tensor()

    x = distribute_tensor(whole().to(device), mesh, [Shard(0)])
    w = distribute_tensor(whole(5, 4).to(device), mesh, [Replicate()]).requires_grad_()
    y = torch.relu(x @ w).sum(dim=0)
    y.square().sum().backward()
    out["product"], out["product grad"] = y.full_tensor(), w.grad.full_tensor()
    out["placements"] = str(w.grad.placements), str(x.device.type), tuple(x.shape)
    out["mean"] = x.mean().full_tensor()
    out["softmax"] = torch.softmax(
        distribute_tensor(whole().to(device), mesh, [Shard(1)]), dim=1
    ).full_tensor()
    local = whole(rank + 1, 2).to(device)
    rows = sum(range(size + 1))
    uneven = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(rows, 2), stride=(2, 1))
    out["uneven"] = tuple(uneven.shape)
    out["zeros"] = zeros(7, 3, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
    torch.manual_seed(5)
    out["random"] = randn(8, 3, device_mesh=mesh, placements=[Replicate()]).to_local().shape

    torch.manual_seed(0)
    layer = distribute_module(torch.nn.Linear(5, 3).to(device), mesh)
    layer(distribute_tensor(whole().to(device), mesh, [Replicate()])).sum().backward()
    out["module"] = layer.weight.grad.full_tensor()

    heads = attended().to(device)
    x = distribute_tensor(heads, mesh, [Shard(1)]).requires_grad_()
    y = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    y.square().sum().backward()
    out["attention"], out["attention grad"] = y.full_tensor(), x.grad.full_tensor()
    torch.nn.init.kaiming_uniform_(x.detach())
    out["initialised"] = x.full_tensor().abs().max().item() > 0.1
    end(out)


if __name__ == "__main__":
    main()
