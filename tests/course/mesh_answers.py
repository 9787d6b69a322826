"""Right and wrong answers to the exercises of lesson 17, tried with those of the others in test_answers.py."""

import math

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh


def all_groups(stride_of, turned=False, own_alone=False, most=9):
    """A ``groups``: how far apart neighbours are along a dimension, in which order the groups are given."""

    def groups(sizes):
        found = []
        for at, size in list(enumerate(sizes))[:most]:
            stride = stride_of(sizes, at)
            for first in [rank for rank in range(math.prod(sizes)) if rank // stride % size == 0]:
                members = [first + step * stride for step in range(size)]
                if own_alone and dist.get_rank() not in members:
                    continue
                group = dist.new_group(members)
                if dist.get_rank() in members:
                    found.append(group)
        return found[::-1] if turned else found

    return groups


def by_members(sizes):
    """Each rank makes its own groups only, which PyTorch allows if no two of a call overlap."""
    rank, found = dist.get_rank(), []
    for at, size in enumerate(sizes):
        stride = inside(sizes, at)
        first = rank - rank // stride % size * stride
        members = [first + step * stride for step in range(size)]
        found.append(dist.new_group(members, use_local_synchronization=True))
    return found


def inside(sizes, at):
    return math.prod(sizes[at + 1 :])


def of_a_mesh(sizes):
    mesh = init_device_mesh("cuda", sizes)
    return [mesh.get_group(at) for at in range(len(sizes))]


def enumerated(sizes):
    found, _ = dist.new_subgroups_by_enumeration([list(range(math.prod(sizes)))])
    return [found] * len(sizes)


def every_group(sizes):
    found = []
    for at, size in enumerate(sizes):
        stride = math.prod(sizes[at + 1 :])
        for first in [r for r in range(math.prod(sizes)) if r // stride % size == 0]:
            found.append(dist.new_group([first + step * stride for step in range(size)]))
    return found


def by_state_dict(folder, model, optimizer):
    dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=folder)


def from_state_dict(folder, model, optimizer):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def whole(folder, model, optimizer):
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def opened(folder, model, optimizer, names=("model", "optimizer"), put=True):
    weights, state = get_state_dict(model, optimizer)
    kept = {"model": weights, "optimizer": state}
    dcp.load({name: kept[name] for name in names}, checkpoint_id=folder)
    if put:
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def in_one_file(folder, model, optimizer):
    state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(state, f"{folder}/all.pt")
    dist.barrier()


def out_of_one_file(folder, model, optimizer):
    weights, state = torch.load(f"{folder}/all.pt", weights_only=False)
    set_state_dict(
        model, optimizer, model_state_dict=weights, optim_state_dict=state,
        options=StateDictOptions(full_state_dict=True),
    )  # fmt: skip


def own_file(folder, model, optimizer):
    torch.save([model.state_dict(), optimizer.state_dict()], f"{folder}/{dist.get_rank()}.pt")


def from_own_file(folder, model, optimizer):
    weights, state = torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=False)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)


def on_rank_0(folder, model, optimizer):
    if dist.get_rank() == 0:
        torch.save([weight.full_tensor() for weight in model.parameters()], f"{folder}/all.pt")


RIGHT = {
    "17.coordinate": [[1, 0, 1], (1, 0, 1), "1, 0, 1", torch.tensor([1, 0, 1])], "17.group": [[5, 7], "5 7", [7, 5]],
    "17.groups": [all_groups(inside), by_members],
    "17.resume": [[whole, opened],
                  [whole, lambda *given: opened(*given, put=False)], (in_one_file, out_of_one_file)],
    "17.llama": [8],
}  # fmt: skip
WRONG = {
    "17.coordinate": [
        ([0, 1, 1], "along tp neighbours are 1 apart"), ([1, 1, 0], "4·? + 2·? + 1·?"),
    ],
    "17.group": [([4, 5], "they share a layer"), ([1, 5], "hold the same weights"), ([5], "change only the middle")],
    "17.groups": [
        (all_groups(inside, own_alone=True), "which groups must a rank make that it is not in"),
        (all_groups(inside, turned=True), "from the inside out"),
        (all_groups(inside, most=1), "one group of each dimension"), (enumerated, "How far apart are neighbours"),
        (of_a_mesh, "make them with `dist.new_group`"), (lambda sizes: list(sizes), "asks for a function of `sizes`"),
        (every_group, "keep these and no others"),
    ],
    "17.resume": [
        ([own_file, from_own_file], "says nothing of the whole"),
        ([on_rank_0, opened], "only some of them"),
        ([whole, lambda *given: None], "Does what was loaded arrive"),
        ([whole, lambda *given: opened(*given, names=["model"])], "What decides how the weights change"),
        ([by_state_dict, from_state_dict], "holds no tensors"), ([whole], "asks for two functions"),
    ],
    "17.llama": [(4, "earlier versions"), (128, "right without CP"), (16, "multiply to the number")],
}  # fmt: skip
