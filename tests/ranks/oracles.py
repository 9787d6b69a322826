"""What each script of scripts/ must end with, without distribution: by formula, or by one model on the joined batch.

``NAME(script, rank, size)`` is what rank ``rank`` of ``size`` saves: ``script`` is the script as a module, for its
models and batches. A value that is not named here must not be saved either.
"""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

Values = dict[str, Any]


# Collectives, by formula.


def collectives(script: ModuleType, rank: int, size: int) -> Values:
    ranks, mine = range(size), script.mine
    xs = torch.stack([mine(r) for r in ranks])
    out: Values = {
        "all_reduce SUM": xs.sum(0), "all_reduce AVG": xs.mean(0), "all_reduce PRODUCT": xs.prod(0),
        "all_reduce MIN": xs.amin(0), "all_reduce MAX": xs.amax(0),
        "all_reduce bool": torch.tensor([True, False, True]),
        "all_reduce complex": torch.complex(xs.sum(0), -xs.sum(0)), "all_reduce premultiplied": xs.sum(0) / 2,
        "all_reduce empty": torch.empty(0), "broadcast": mine(size - 1),
        "all_gather": [mine(r) for r in ranks],
        "all_gather uneven": [mine(r, rows=r + 1) for r in ranks], "all_gather_into_tensor": xs.flatten(),
        "all_gather_into_tensor stacked": xs, "scatter": mine(rank),
        "reduce_scatter": sum(mine(r + rank) for r in ranks),
        "reduce_scatter_tensor": sum(mine(r, rows=2 * size) for r in ranks).chunk(size)[rank],
        "reduce_scatter_tensor AVG": sum(mine(r, rows=2 * size) for r in ranks).chunk(size)[rank] / size,
        "all_to_all_single": torch.tensor([float(10 * r + 1 + rank) for r in ranks]),
        "all_to_all_single uneven": torch.cat(
            [mine(r, rows=sum(range(size + 1))).split(list(range(1, size + 1)))[rank] for r in ranks]),
        "all_to_all": [mine(r + 100 * rank, rows=2) for r in ranks],
    }  # fmt: skip
    for dtype in (torch.int64, torch.uint8, torch.float64, torch.bfloat16, torch.float16):
        out[f"all_reduce {dtype}"] = xs.sum(0).to(dtype)
    if rank == size - 1:
        out["reduce"] = xs.sum(0)
    if rank == 0:
        out["gather"] = list(xs)
    return out


def asynchronous(script: ModuleType, rank: int, size: int) -> Values:
    ranks, mine = range(size), script.mine
    total = sum(mine(r) for r in ranks)
    return {
        "four at once": [total * k for k in range(4)],
        "completed": True,
        "future": total / size,
        "broadcast": mine(0),
        "all_gather": [mine(r) for r in ranks],
        "all_gather_into_tensor": torch.cat([mine(r) for r in ranks]),
        "reduce_scatter_tensor": sum(mine(r, rows=size) for r in ranks)[rank : rank + 1],
        "all_to_all_single": torch.tensor([float(10 * r + 1 + rank) for r in ranks]),
        "device waited for": total,
        "stream": total,
        "coalesced": [total, total[:2]],
        "coalesced gathers": [torch.cat([mine(r, rows=rows) for r in ranks]) for rows in (4, 2)],
        "coalesced scatters": [
            sum(mine(r, rows=rows * size) for r in ranks).chunk(size)[rank] for rows in (1, 2)
        ],
    }


def point_to_point(script: ModuleType, rank: int, size: int) -> Values:
    mine, before = script.mine, (rank - 1) % size
    out: Values = {
        "chain": sum(mine(r) for r in range(rank + 1)), "ring": mine(before), "batch": mine(before),
        "everybody": [torch.full((r + 1,), float(r) if r != rank else -1.0) for r in range(size)],
        "pairs": mine(rank ^ 1),
    }  # fmt: skip
    if rank == 1:
        out |= {"sender": 0, "objects": [{"from": 0}, "words"]}
    return out


# Training, by one model on the joined batch.


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))
    return torch.cat(parts)


def ddp(script: ModuleType, rank: int, size: int) -> Values:
    def trained(accumulate: int = 1, of: Any = torch.optim.SGD, lr: float = 0.1) -> Values:
        torch.manual_seed(0)
        model, loss_of, losses = script.make_model(), nn.CrossEntropyLoss(), []
        optimizer = of(model.parameters(), lr=lr)
        for step in range(script.STEPS):
            optimizer.zero_grad()
            for part in range(accumulate):
                batches = [script.make_batch(r, step * accumulate + part) for r in range(size)]
                with torch.no_grad():
                    x, y = batches[rank]
                    own = loss_of(model(x), y).item() / accumulate
                x, y = _joined(batches)
                (loss_of(model(x), y) / accumulate).backward()
            optimizer.step()
            losses.append(own)
        weights = [w.detach() for w in model.state_dict().values()]
        return {"weights": weights, "losses": losses, "grads": [p.grad for p in model.parameters()]}

    plain, accumulated = trained(), trained(accumulate=3)
    names = (
        "plain", "many buckets", "views", "static graph", "allreduce hook", "fp16 hook", "bf16 hook",
        "own hook", "powerSGD",
    )  # fmt: skip
    return dict.fromkeys(names, plain) | {
        "adam": trained(of=torch.optim.AdamW, lr=0.01),
        "accumulated": accumulated,
        "accumulated in views": accumulated,
    }


def ddp_uneven(script: ModuleType, rank: int, size: int) -> Values:
    ranks, rows = range(size), script.make_rows
    torch.manual_seed(0)
    model = script.Branches()
    # A parameter that no rank used keeps no gradient; one that some used is averaged with zeros for the others.
    (sum(model(rows(r), left=r == 0) for r in ranks) / size).backward()
    out: Values = {"unused": {name: p.grad for name, p in model.named_parameters()}, "refused": True}

    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in ranks:
        optimizer.zero_grad()
        (sum(layer(rows(r, step)).square().mean() for r in ranks if r >= step) / size).backward()
        optimizer.step()
    out["joined"] = [w.detach() for w in layer.state_dict().values()]

    # Each rank follows its own statistics and begins every forward with rank 0's.
    norm, kept = nn.BatchNorm1d(4), None
    for step in range(3):
        kept = copy.deepcopy(norm)
        norm(rows(0, step))
    assert kept is not None
    kept(rows(rank, 2))
    out["buffers"] = list(kept.buffers())

    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    judge.requires_grad_(False)
    judge(maker(torch.cat([rows(r) for r in ranks]))).square().mean().backward()
    out["maker"] = [p.grad for p in maker.parameters()]
    out["logging"] = {"world_size": size, "backend_name": "nccl", "rank": rank}
    return out


def _sharded(
    script: ModuleType, size: int, parts: int = 1, half: bool = False
) -> tuple[nn.Module, list[float], Any]:
    """The model of the FSDP scripts, trained by one: it, the norms of its gradients, the optimizer."""
    model, norms = script.make_model(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(script.STEPS):
        optimizer.zero_grad()
        # bf16: the weights are rounded for each forward, the gradients summed in float32.
        working = copy.deepcopy(model).to(torch.bfloat16) if half else model
        for part in range(parts):
            for r in range(size):
                rows = script.make_rows(r, step * parts + part)
                rows = rows.to(torch.bfloat16) if half else rows
                (working(rows).square().mean() / parts / (1 if half else size)).backward()
                if half:
                    for p, q in zip(model.parameters(), working.parameters(), strict=True):
                        assert q.grad is not None
                        p.grad = (0 if p.grad is None else p.grad) + q.grad.float() / size
                        q.grad = None
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
    return model, norms, optimizer


def fsdp2(script: ModuleType, rank: int, size: int) -> Values:
    def told(model: nn.Module, norms: list[float], shards: int, place: int) -> Values:
        weights = [p.detach() for p in model.parameters()]
        out: Values = {"weights": weights, "norms": norms}
        out["local"] = [(_rows(len(w), shards)[place], *w.shape[1:]) for w in weights]
        return out | ({"full": weights} if rank == 0 else {})

    plain, norms, _ = _sharded(script, size)
    low, low_norms, _ = _sharded(script, size, half=True)
    accumulated, accumulated_norms, _ = _sharded(script, size, parts=2)
    return {
        "resharded": told(plain, norms, size, rank), "kept": told(plain, norms, size, rank),
        "hybrid": told(plain, norms, size // 2, rank % (size // 2)), "bf16": told(low, low_norms, size, rank),
        "accumulated": told(accumulated, accumulated_norms, size, rank),
    }  # fmt: skip


def _rows(rows: int, shards: int) -> list[int]:
    """How many rows each shard has: torch.chunk's lengths, and none for those that come too late."""
    lengths = [len(piece) for piece in torch.empty(rows).chunk(shards)]
    return lengths + [0] * (shards - len(lengths))


def _ends(rows: int, shards: int) -> list[int]:
    lengths = _rows(rows, shards)
    return [sum(lengths[: k + 1]) for k in range(shards - 1)]


def _checkpointed(script: ModuleType) -> list[Tensor]:
    model = script.make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        model(script.make_rows(step)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def checkpoint_save(script: ModuleType, rank: int, size: int) -> Values:
    return {"weights": _checkpointed(script)}


def checkpoint_load(script: ModuleType, rank: int, size: int) -> Values:
    weights, table = _checkpointed(script), torch.arange(28.0).reshape(7, 4)
    out = {"step": 2, "note": "kept", "weights": weights, "beside": weights}
    out["table"] = table.tensor_split(_ends(4, size), 1)[rank]
    return out | ({"whole": ["0.bias", "0.weight", "2.bias", "2.weight"]} if rank == 0 else {})
