"""What most scripts of this folder begin and end with."""

import os
import sys

import torch
import torch.distributed as dist


def begin():
    """Join the others on this rank's GPU; return the rank, how many there are, and the device."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return dist.get_rank(), dist.get_world_size(), device


def end(out):
    """Save what the rank has to show in the folder that the script is given."""
    torch.save(out, f"{sys.argv[1]}/{dist.get_rank()}.pt")
    dist.destroy_process_group()
