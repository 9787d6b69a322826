"""Distributed checkpoints of checkpoint_save.py loaded by another number of ranks, and trained on; read by one."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_save import Progress, make_model, make_rows
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    out_folder, folder = sys.argv[1:]
    model = make_model().cuda()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer, progress = torch.optim.Adam(model.parameters(), lr=0.01), Progress()
    weights, state = get_state_dict(model, optimizer)
    kept = {"model": weights, "optimizer": state, "progress": progress}
    dcp.load(kept, checkpoint_id=f"{folder}/kept")
    set_state_dict(model, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])
    out = {"step": progress.step, "note": progress.note}
    for step in range(progress.step, 3):
        optimizer.zero_grad()
        model(make_rows(step).cuda()).square().mean().backward()
        optimizer.step()
    out["weights"] = [p.full_tensor().detach() for p in model.parameters()]

    beside = {"model": get_state_dict(model, optimizer)[0]}
    dcp.load(beside, checkpoint_id=f"{folder}/beside")
    out["beside"] = [p.full_tensor().detach() for p in beside["model"].values()]

    mesh = init_device_mesh("cuda", (size,))
    table = distribute_tensor(
        torch.zeros(7, 4).cuda(), mesh, [Shard(1)]
    )  # it was cut along the other dimension
    dcp.load({"table": table}, checkpoint_id=f"{folder}/table")
    out["table"] = table.to_local()

    if rank == 0:
        dcp_to_torch_save(f"{folder}/kept", f"{out_folder}/whole.pth")
        whole = torch.load(f"{out_folder}/whole.pth", weights_only=False)
        out["whole"] = sorted(whole["model"])
    dist.barrier()
    torch.save(out, f"{out_folder}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
