"""Hints for wrong answers, and the student's ``check(...)``, which tries open examples.

A check starts no processes: it calls the answer on ranks that are threads, or on a single one.
"""

from __future__ import annotations

import gc
import io
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not listed in its stubs
from torch.nn.parallel import DistributedDataParallel

from labkit_classroom.checking import Student, visible
from labkit_classroom.judging import NoAnswer, same
from labkit_classroom.messages import listed, text_maker
from labkit_classroom.sandbox.inside import ranks
from labkit_classroom.verdict import Hint

from . import drivers

hint = text_maker(Hint, __file__)


def wrong_group(told: list[Any]) -> Iterator[Hint]:
    """Checks the groups of all ranks, by what each rank told."""
    size = len(told)
    if any(one["rank"] is None for one in told):
        yield hint("no-group")
    if [(one["rank"], one["size"]) for one in told] != [(rank, size) for rank in range(size)]:
        yield hint("group", size=size, ranks=[one["rank"] for one in told])
    if any(len(one["backend"]) != 1 or not _has_nccl(one["backend"][0]) for one in told):
        yield hint("backend", backend=told[0]["backend"])


def _has_nccl(backend: str) -> bool:
    """Return whether GPUs talk through NCCL in a group that was asked for with this name; "None" takes all there are."""
    kinds = dict(pair.split(":") for pair in backend.lower().split(",") if ":" in pair)
    return backend.lower() in ("nccl", "none") or kinds.get("cuda") == "nccl"


def wrong_exchange(told: list[Any]) -> Iterator[Hint]:
    """Check that the number given to each rank has reached all others through their group."""
    sent = [one["number"] for one in told]
    if any(one["heard"] != sent for one in told):
        yield hint("apart")


def wrong_device(told: list[Any], gpus: int) -> Iterator[Hint]:
    """Checks the devices of ranks, ``gpus`` to a machine."""
    devices, wanted = [one["device"] for one in told], [f"cuda:{rank % gpus}" for rank in range(len(told))]
    errors = [(rank, one["error"]) for rank, one in enumerate(told) if one["error"]]
    if errors:
        rank, error = errors[0]
        yield hint("device-error", gpus=gpus, error=error, rank=rank)
    if None in devices:
        yield hint("kind", kind=told[0]["kind"])
    if len(told) > 1 and set(devices) == {"cuda:0"} != set(wanted):
        yield hint("everyone-0")
    if devices != wanted:
        yield hint("local", gpus=gpus, devices=listed(devices))
    if [one["current"] for one in told] != [rank % gpus for rank in range(len(told))]:
        yield hint("current")


def wrong_rows(epochs: list[Any], rows: int) -> Iterator[Hint]:
    """Checks that the ranks together read every row once in the first epoch."""
    reads = [[row for batch in rank[0] for row in batch] for rank in epochs]
    everything = sorted(row for rank in reads for row in rank)
    if len(reads) > 1 and all(sorted(rank) == list(range(rows)) for rank in reads):
        yield hint("all-rows")
    if everything != list(range(rows)):
        missing = len(set(range(rows)) - set(everything))
        yield hint("rows", rows=rows, missing=missing, count=len(everything))


def wrong_steps(epochs: list[Any], batch_size: int) -> Iterator[Hint]:
    together = sum(len(rank[0][0]) for rank in epochs)
    if together != batch_size:
        yield hint("batch-size", together=together, batch_size=batch_size)


def wrong_order(epochs: list[Any]) -> Iterator[Hint]:
    for first, second in epochs:
        flat = [row for batch in first for row in batch]
        if flat == sorted(flat):
            yield hint("unshuffled")
        if first == second:
            yield hint("same-order")


def wrong_gradient(told: list[Any], wanted: Tensor) -> Iterator[Hint]:
    """Check that all ranks have the average gradient, on their own devices."""
    if any(one["place"] != f"cuda:{rank}" for rank, one in enumerate(told)):
        yield hint("place", places=listed(one["place"] for one in told))
    gradients = [one["gradient"] for one in told]
    if any(gradient is None for gradient in gradients):
        yield hint("no-gradient")
    if len(told) > 1 and any(not same(gradient, gradients[0], 1e-5) for gradient in gradients):
        yield hint("apart", "gradient", kind=told[0]["kind"])
    if not same(gradients[0], wanted, 1e-4):
        yield hint("gradient")


def wrong_start(told: list[Any], weight: Tensor) -> Iterator[Hint]:
    if any(not same(one["first"], weight) for one in told):
        yield hint("other-weights")


def wrong_step(told: Any, right: Tensor, before: Tensor, rows: list[int]) -> Iterator[Hint]:
    """Check the weights after one step with learning rate 1, and that the ranks have exchanged gradients."""
    weights = [after for after, _, _ in told["results"]]
    if any(not same(weight, weights[0], 1e-5) for weight in weights):
        yield hint("drift")
    if same(weights[0], right, 1e-4):
        # seen: the rows that went through a rank's model; more than its own are other ranks' rows.
        others = any(seen > own for (_, _, seen), own in zip(told["results"], rows, strict=True))
        # DDP itself broadcasts its weights.
        travelled = [size for name, size in told["calls"] if name != "broadcast"]
        if others or max(travelled, default=0) < 4 * before.numel():
            yield hint("no-exchange")
        return
    if same(weights[0], before):
        yield hint("no-step")
    moved, wanted = before - weights[0], before - right
    if same(moved - 1, wanted, 1e-4):
        yield hint("not-cleared")
    ranks, factor = len(rows), float((moved * wanted).sum() / (wanted * wanted).sum())
    if same(moved, wanted * factor, 1e-3):
        yield hint("factor", factor=factor, ranks=ranks)
    if len(set(rows)) > 1:
        yield hint("mean-of-means", rows=rows)
    yield hint("step")


def wrong_told(told: list[Any], right: float, own: list[float]) -> Iterator[Hint]:
    """Check the returned means. ``own``: the means over each rank's rows."""
    if any(type(one) not in (int, float) for one in told):
        raise NoAnswer(hint("kind", "told"))
    if all(abs(one - right) < 1e-4 * (1 + abs(right)) for one in told):
        return
    if all(abs(one - mean) < 1e-4 * (1 + mean) for one, mean in zip(told, own, strict=True)):
        yield hint("own-mean")
    shown = ", ".join(f"{one:.4f}" for one in told)
    yield hint("told", shown=shown, right=right)


def wrong_writes(written: list[int]) -> Iterator[Hint]:
    if sum(written) != 1:
        yield hint("writers", count=sum(written))


def wrong_file(saved: object, weight: Tensor) -> Iterator[Hint]:
    if not isinstance(saved, dict):
        yield hint("unreadable")
    elif list(saved) == ["module.weight"]:
        yield hint("prefix")
    elif list(saved) != ["weight"] or not same(saved["weight"], weight):
        yield hint("content")


def wrong_waiting(found: list[bool]) -> Iterator[Hint]:
    if not all(found):
        absent = ", ".join(str(rank) for rank, there in enumerate(found) if not there)
        yield hint("no-wait", absent=absent)


def alone(work: Callable[[], Any]) -> Any:
    """Runs ``work()`` in a real group of this process alone.

    A DDP model that outlives its group takes the group apart in its own destructor, which then waits, holding Python's
    lock, for a thread that wants it: so what ``work`` made is gone before the group is.
    """
    dist.init_process_group("cpu:gloo,cuda:gloo", store=HashStore(), rank=0, world_size=1)
    try:
        return work()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        gc.collect()
        dist.destroy_process_group()


@visible("start", "start", en="a function without arguments", zh="一个没有参数的函数")
def _start(student: Student) -> Iterator[Hint]:
    told = ranks.run(student, _start_rank, [{}] * 4, gpus=2, threads=True)
    yield from _report_hang(told, "start")
    yield from wrong_group(told["results"])
    yield from wrong_device(told["results"], 2)


def _start_rank(student: Student) -> dict[str, Any]:
    dist.destroy_process_group()
    device = student["start"]()
    backends = [dist.distributed_c10d.get_backend_config()] if dist.is_initialized() else []
    found: dict[str, Any] = drivers.describe_start(device, backends)
    return found


def _report_hang(told: Any, question: str) -> Iterator[Hint]:
    if told["stuck"]:
        yield hint("stuck", question)


@visible(
    "loader",
    "loader",
    en="a function of `dataset` and `batch_size`",
    zh="一个以 `dataset` 和 `batch_size` 为参数的函数",
)
def _loader(student: Student) -> Iterator[Hint]:
    told = ranks.run(student, drivers.read_rows, [{"rows": 48, "batch_size": 12}] * 2, threads=True)
    yield from _report_hang(told, "loader")
    yield from wrong_rows(told["results"], 48)
    yield from wrong_steps(told["results"], 12)
    yield from wrong_order(told["results"])


@visible(
    "wrap", "wrap", en="a function of `model` and `device`", zh="一个以 `model` 和 `device` 为参数的函数"
)
def _wrap(student: Student) -> Iterator[Hint]:
    def work() -> str:
        model = student["wrap"](drivers.make_linear(torch.ones(1, 2)), torch.device("cuda", 0))
        model(torch.ones(3, 2, device="cuda:0")).sum().backward()
        # Alone in its group, only a model without wrapper and hooks surely averages nothing.
        hooked = any(one._backward_hooks or one._post_accumulate_grad_hooks for one in model.parameters())
        return type(model).__name__ if isinstance(model, (nn.Linear, nn.DataParallel)) and not hooked else ""

    if kind := alone(work):
        yield hint("apart", "wrap", kind=kind)


@visible(
    "step",
    "step",
    en="a function of `model`, `x`, `y` and `optimizer`",
    zh="一个以 `model`、`x`、`y` 和 `optimizer` 为参数的函数",
)
def _step(student: Student) -> Iterator[Hint]:
    before, x, y = torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.zeros(2, 1)

    def work() -> tuple[Any, Tensor]:
        model = DistributedDataParallel(drivers.make_linear(before).to("cuda:0"), device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        told = student["step"](model, x.to("cuda:0"), y.to("cuda:0"), optimizer)
        told = told.item() if isinstance(told, Tensor) else told
        return told, model.module.weight.detach().cpu().clone()

    told, weight = alone(work)
    # One rank: the mean of (3, 4) squared is 12.5, and its gradient (1 * 3 + 3 * 4, 2 * 3 + 1 * 4).
    alone_told = {
        "results": [(weight, told, len(x))],
        "calls": [("all_reduce", 8)],
    }  # a single rank cannot show its calls
    yield from wrong_step(alone_told, before - torch.tensor([[15.0, 10.0]]), before, [2])
    yield from wrong_told([told], 12.5, [-1])


@visible("save", "save", en="a function of `model` and `path`", zh="一个以 `model` 和 `path` 为参数的函数")
def _save(student: Student) -> Iterator[Hint]:
    weight, writers, returned, saved = torch.ones(1, 2), list[int](), list[int](), None
    real, size = torch.save, 2

    def save_slowly(obj: Any, f: Any, *arguments: Any, **more: Any) -> None:
        if not isinstance(f, io.BytesIO):
            writers.append(dist.get_rank())
        # Hold the file back, so that others return without it unless they wait.
        ranks.wait_until(lambda: len(returned) == size - 1, 0.5)
        real(obj, f, *arguments, **more)

    def work(student: Student, path: str) -> bool:
        dist.destroy_process_group()
        dist.init_process_group("cpu:gloo,cuda:nccl")
        device = torch.device("cuda", dist.get_rank())
        model = DistributedDataParallel(drivers.make_linear(weight).to(device), device_ids=[device])
        drivers.call(student, "save", {real: save_slowly}, model, path)
        returned.append(dist.get_rank())
        return os.path.exists(path) and os.path.getsize(path) > 0

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(torch, "save", save_slowly),
        mock.patch.object(torch.serialization, "save", save_slowly),
    ):
        path = os.path.join(folder, "net.pt")
        told = ranks.run(student, work, [{"path": path}] * size, threads=True)
        if os.path.exists(path):
            saved = torch.load(path, map_location="cpu", weights_only=True)
    # The bytes of a file may come from memory.
    yield from wrong_writes([len(writers) or saved is not None])
    if isinstance(saved, dict):  # a Parameter counts as its tensor
        saved = {name: getattr(value, "data", value) for name, value in saved.items()}
    yield from wrong_file(saved, weight)
    yield from _report_hang(told, "save")
    yield from wrong_waiting(told["results"])
