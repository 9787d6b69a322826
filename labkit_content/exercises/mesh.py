"""Exercises of lesson 17: the groups of a mesh made by hand, and a checkpoint that other ranks open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from math import isclose, prod
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from labkit.base.language import series
from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named, Unreadable
from labkit_course.kinds import a_function, read_returned
from labkit_ranks.plans.mesh import Mesh

from .on_ranks import RanksRun, on_ranks, watch_new

_NAMES = ("dp", "pp", "tp")
_FACTS = {"rank": (5, 0, 31), "stages": (2, 1, 8), "width": (2, 1, 8)}


def _fresh(random: Random) -> dict[str, int]:
    stages, width = random.randint(2, 4), random.randint(2, 4)
    return {"rank": random.randrange(2 * stages * width), "stages": stages, "width": width}


@derive_facts("17.coordinate", fresh=_fresh, **_FACTS)
def _coordinate(rank: int, stages: int, width: int) -> dict[str, Any]:
    dp, pp, tp = Mesh(_NAMES, (2, stages, width)).coordinate(rank)
    return {
        "dp": dp,
        "pp": pp,
        "tp": tp,
        "place": [dp, pp, tp],
        "back": [tp, pp, dp],
        "outer": stages * width,
    }


@derive_facts("17.group", fresh=_fresh, **_FACTS)
def _group(rank: int, stages: int, width: int) -> dict[str, Any]:
    mesh, found = Mesh(_NAMES, (2, stages, width)), dict[str, Any]()
    groups = dict[str, Sequence[int]]()
    for name in _NAMES:
        groups[name] = members = next((group for group in mesh.groups(name) if rank in group), [rank])
        found[name] = series(members)
    # A group may be listed in any order.
    orders = {
        name: map(series, permutations(members)) for name, members in groups.items() if len(members) < 5
    }
    return found | {f"any_{name}": " or ".join(orders.get(name, [found[name]])) for name in _NAMES}


# The groups of a mesh, by hand.


@judge("17.groups", a_function("groups"))
def _groups(answer: Callable[..., Any]) -> Hints:
    def part(sizes: list[int]) -> list[list[int]] | None:
        found = answer(tuple(sizes))
        # The result of `new_group` on a rank outside the group.
        outside = dist.GroupMember.NON_GROUP_MEMBER
        if not isinstance(found, (list, tuple)) or not all(
            one is outside or isinstance(one, dist.ProcessGroup) for one in found
        ):
            return None if found is None else []
        members = list[list[int]]()
        for group in found:  # a sum shows the group's members
            if group is outside:
                members.append([])
                continue
            here = torch.zeros(prod(sizes), device="cuda")
            here[dist.get_rank()] = 1
            dist.all_reduce(here, group=group)
            members.append(here.nonzero().flatten().tolist())
        return members

    drawn = Random().choice([(3, 2), (2, 3), (2, 1, 3), (4, 2)])
    for sizes in ((2, 2, 2), drawn):
        with watch_new(DeviceMesh) as made:
            ran = on_ranks(part, prod(sizes), [(list(sizes),)] * prod(sizes))
        if made:
            yield Named("borrowed")
        if ran.failure and ran.failure.hangs:
            yield Named("own_alone", sizes=sizes)
        results = ran.require_success().results
        if not read_returned(results[0], en="groups", zh="groups "):
            raise Unreadable
        yield from _members(results, sizes)


def _members(results: list[Any], sizes: tuple[int, ...]) -> Hints:
    names = tuple(map(str, range(len(sizes))))
    mesh = Mesh(names, sizes)
    for rank, found in enumerate(results):
        wanted = [[*group] for name in names for group in mesh.groups(name) if rank in group]
        if found == wanted:
            continue
        case = {"rank": rank, "sizes": sizes, "found": found, "wanted": wanted}
        yield Named(
            "inside_out" if found == wanted[::-1] else "count" if len(found) != len(sizes) else "members",
            **case,
        )


# A checkpoint that another number of ranks opens.


def _pair(answer: object) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if not isinstance(answer, (list, tuple)) or len(answer) != 2 or not all(map(callable, answer)):
        raise Unreadable
    return answer[0], answer[1]


@judge("17.resume", _pair)
def _resume(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> Hints:
    save, load = answer
    seed, without_moments = Random().randrange(1000), list[int]()

    def save_and_train(folder: str) -> list[float]:
        model, optimizer = _make_model(seed)
        _losses(model, optimizer, seed, 3)
        save(folder, model, optimizer)
        return _losses(model, optimizer, seed + 3, 3)

    def load_and_train(folder: str) -> list[float]:
        model, optimizer = _make_model(seed + 1)  # a wrong load must show in the losses
        load(folder, model, optimizer)
        if not optimizer.state:
            without_moments.append(dist.get_rank())
        return _losses(model, optimizer, seed + 3, 3)

    for ranks, others in ((8, 4), (2, 3)):
        with TemporaryDirectory() as folder:
            case = {"ranks": ranks, "others": others}
            saved = on_ranks(save_and_train, ranks, [(folder,)] * ranks)
            yield from _hung(saved, case)
            loaded = on_ranks(load_and_train, others, [(folder,)] * others)
            yield from _hung(loaded, case)
            if loaded.failure and not saved.failure and _needs_same_ranks(loaded):
                yield Named("own_files", **case)
            moments = "no_moments" if without_moments and _has_moments(folder) else "optimizer"
        before, after = saved.require_success().results[0], loaded.require_success().results
        yield from _compare_losses(before, after, case, moments)


def _has_moments(folder: str) -> bool:
    """Return whether a checkpoint made by ``dcp.save`` holds Adam's moments."""
    try:
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    except FileNotFoundError:
        return False
    return any("exp_avg" in name for name in saved)


def _make_model(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3)).cuda()
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _losses(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, count: int) -> list[float]:
    found = []
    for step in range(first, first + count):
        torch.manual_seed(step)
        loss = model(torch.randn(8, 6, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def _hung(ran: RanksRun, case: dict[str, Any]) -> Hints:
    if ran.failure and ran.failure.hangs:
        yield Named("hangs", **case)


def _needs_same_ranks(ran: RanksRun) -> bool:
    """Return whether only the same number of ranks can open the files."""
    assert ran.failure is not None
    return isinstance(ran.failure.error, FileNotFoundError) or "mesh" in str(ran.failure.error).lower()


def _compare_losses(
    before: list[float], after: list[list[float]], case: dict[str, Any], moments: str
) -> Hints:
    """Yield hints on losses that differ; ``moments`` names the hint where only those after the first do."""
    for rank, losses in enumerate(after):
        seen = {"rank": rank, "before": before[0], "after": losses[0], **case}
        if not isclose(losses[0], before[0], rel_tol=1e-6):
            yield Named("weights", **seen)
        if not all(isclose(one, other, rel_tol=1e-4) for one, other in zip(losses, before, strict=True)):
            yield Named(moments, **seen | {"before": before[1], "after": losses[1]})
