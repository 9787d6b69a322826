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
from labkit_classroom.sandbox.inside import ranks
from labkit_classroom.verdict import Hint

from . import drivers


def wrong_group(told: list[Any]) -> Iterator[Hint]:
    """Checks the groups of all ranks, by what each rank told."""
    size = len(told)
    if any(one["rank"] is None for one in told):
        yield Hint(
            "no-group",
            "after `start()` there is no process group: `init_process_group` was not called",
            "`start()` 之后没有进程组：没有调用 `init_process_group`",
        )
    if [(one["rank"], one["size"]) for one in told] != [(rank, size) for rank in range(size)]:
        yield Hint(
            "group",
            f"of {size} processes the groups say {[one['rank'] for one in told]}: the ranks in the group are `RANK`, "
            "not `LOCAL_RANK`",
            f"一共 {size} 个进程，进程组里的编号却是 {[one['rank'] for one in told]}：进程组里用的是 `RANK`，不是 `LOCAL_RANK`",
        )
    if any(len(one["backend"]) != 1 or not _has_nccl(one["backend"][0]) for one in told):
        yield Hint(
            "backend",
            f"the backend is {told[0]['backend']}; between GPUs it is `nccl`",
            f"后端是 {told[0]['backend']}；GPU 之间用 `nccl`",
        )


def _has_nccl(backend: str) -> bool:
    """Return whether GPUs talk through NCCL in a group that was asked for with this name; "None" takes all there are."""
    kinds = dict(pair.split(":") for pair in backend.lower().split(",") if ":" in pair)
    return backend.lower() in ("nccl", "none") or kinds.get("cuda") == "nccl"


def wrong_exchange(told: list[Any]) -> Iterator[Hint]:
    """Check that the number given to each rank has reached all others through their group."""
    sent = [one["number"] for one in told]
    if any(one["heard"] != sent for one in told):
        yield Hint(
            "apart",
            "there is no group that carries anything: what one rank sends does not reach the others",
            "并没有一个能传东西的进程组：一个 rank 发出的数，其他 rank 收不到",
        )


def wrong_device(told: list[Any], gpus: int) -> Iterator[Hint]:
    """Checks the devices of ranks, ``gpus`` to a machine."""
    devices, wanted = [one["device"] for one in told], [f"cuda:{rank % gpus}" for rank in range(len(told))]
    errors = [(rank, one["error"]) for rank, one in enumerate(told) if one["error"]]
    if errors:
        rank, error = errors[0]
        yield Hint(
            "device-error",
            f"on machines with {gpus} GPUs `start` raises `{error}` on rank {rank}",
            f"每台机器有 {gpus} 块 GPU 时，`start` 在 rank {rank} 上报错：`{error}`",
        )
    if None in devices:
        yield Hint(
            "kind",
            f"`start` should return a `torch.device`, not `{told[0]['kind']}`",
            f"`start` 应该返回 `torch.device`，而不是 `{told[0]['kind']}`",
        )
    if len(told) > 1 and set(devices) == {"cuda:0"} != set(wanted):
        yield Hint("everyone-0", "every rank takes cuda:0", "每个 rank 都认领了 cuda:0")
    if devices != wanted:
        yield Hint(
            "local",
            f"on machines with {gpus} GPUs the ranks take {', '.join(devices)}: a rank's GPU is its `LOCAL_RANK`",
            f"每台机器有 {gpus} 块 GPU，各 rank 认领的却是 {'、'.join(devices)}：本机的 GPU 编号是 `LOCAL_RANK`",
        )
    if [one["current"] for one in told] != [rank % gpus for rank in range(len(told))]:
        yield Hint(
            "current",
            "the device is right, but it is not the current one: `.cuda()` and NCCL would go to cuda:0 "
            "(`torch.cuda.set_device`)",
            "设备是对的，但没有设为当前设备：`.cuda()` 和 NCCL 仍会用 cuda:0（`torch.cuda.set_device`）",
        )


def wrong_rows(epochs: list[Any], rows: int) -> Iterator[Hint]:
    """Checks that the ranks together read every row once in the first epoch."""
    reads = [[row for batch in rank[0] for row in batch] for rank in epochs]
    everything = sorted(row for rank in reads for row in rank)
    if len(reads) > 1 and all(sorted(rank) == list(range(rows)) for rank in reads):
        yield Hint(
            "all-rows",
            "every rank reads every row: a sampler is to tell it which are its own",
            "每个 rank 都读了全部的行：要由采样器告诉它哪些是自己的",
        )
    if everything != list(range(rows)):
        missing = len(set(range(rows)) - set(everything))
        yield Hint(
            "rows",
            f"of {rows} rows {missing} are read by nobody, and {len(everything)} are read in all",
            f"{rows} 行里有 {missing} 行没人读，总共读了 {len(everything)} 行",
        )


def wrong_steps(epochs: list[Any], batch_size: int) -> Iterator[Hint]:
    together = sum(len(rank[0][0]) for rank in epochs)
    if together != batch_size:
        yield Hint(
            "batch-size",
            f"in a step the ranks read {together} rows together; the script reads {batch_size}: each rank takes its share",
            f"一步里各 rank 一共读 {together} 行，原脚本是 {batch_size} 行：每个 rank 只取自己的一份",
        )


def wrong_order(epochs: list[Any]) -> Iterator[Hint]:
    for first, second in epochs:
        flat = [row for batch in first for row in batch]
        if flat == sorted(flat):
            yield Hint(
                "unshuffled",
                "the rows come in the order of the dataset: the script shuffles",
                "行的顺序就是数据集的顺序：原脚本会打乱",
            )
        if first == second:
            yield Hint(
                "same-order",
                "both epochs have the same order: is the sampler PyTorch's, and does it shuffle?",
                "两轮（epoch）的顺序一样：用的是 PyTorch 的采样器吗？它打乱吗？",
            )


def wrong_gradient(told: list[Any], wanted: Tensor) -> Iterator[Hint]:
    """Check that all ranks have the average gradient, on their own devices."""
    if any(one["place"] != f"cuda:{rank}" for rank, one in enumerate(told)):
        yield Hint(
            "place",
            f"the weights are on {', '.join(one['place'] for one in told)}: each rank has its own device",
            f"权重在 {'、'.join(one['place'] for one in told)} 上：每个 rank 应该用自己的设备",
        )
    gradients = [one["gradient"] for one in told]
    if any(gradient is None for gradient in gradients):
        yield Hint("no-gradient", "there is no gradient", "没有得到梯度")
    if len(told) > 1 and any(not same(gradient, gradients[0], 1e-5) for gradient in gradients):
        yield Hint(
            "apart",
            f"the ranks have different gradients: the model is a {told[0]['kind']}, and nobody averages them",
            f"各 rank 的梯度不一样：模型是 {told[0]['kind']}，没有谁去取平均",
        )
    if not same(gradients[0], wanted, 1e-4):
        yield Hint("gradient", "the gradient is not the average over the ranks", "梯度不是各 rank 的平均")


def wrong_start(told: list[Any], weight: Tensor) -> Iterator[Hint]:
    if any(not same(one["first"], weight) for one in told):
        yield Hint(
            "other-weights",
            "the ranks begin with different weights, not with those of rank 0",
            "各 rank 一开始的权重不一样，用的不是 rank 0 的权重",
        )


ALONE = Hint(
    "no-exchange",
    "no gradients travel between the ranks, or a rank computes other ranks' rows: each is to compute its own rows, and "
    "the ranks exchange gradients",
    "各 rank 之间没有交换梯度，或者有的 rank 算了别人的行：每个 rank 只算自己的行，交换的是梯度",
)


def wrong_step(told: Any, right: Tensor, before: Tensor, rows: list[int]) -> Iterator[Hint]:
    """Check the weights after one step with learning rate 1, and that the ranks have exchanged gradients."""
    weights = [after for after, _, _ in told["results"]]
    if any(not same(weight, weights[0], 1e-5) for weight in weights):
        yield Hint(
            "drift", "after the step the ranks have different weights", "走完一步，各 rank 的权重不一样了"
        )
    if same(weights[0], right, 1e-4):
        # seen: the rows that went through a rank's model; more than its own are other ranks' rows.
        others = any(seen > own for (_, _, seen), own in zip(told["results"], rows, strict=True))
        # DDP itself broadcasts its weights.
        travelled = [size for name, size in told["calls"] if name != "broadcast"]
        if others or max(travelled, default=0) < 4 * before.numel():
            yield ALONE
        return
    if same(weights[0], before):
        yield Hint("no-step", "the weights have not changed", "权重没有变")
    moved, wanted = before - weights[0], before - right
    if same(moved - 1, wanted, 1e-4):
        yield Hint(
            "not-cleared",
            "old gradients are added in: `zero_grad` comes first",
            "旧的梯度也加进来了：要先 `zero_grad`",
        )
    factor = float((moved * wanted).sum() / (wanted * wanted).sum())
    if same(moved, wanted * factor, 1e-3):
        en = f"the step is {factor:.3g} times what it should be: DDP sums the gradients and divides by {len(rows)}"
        zh = f"这一步是应有的 {factor:.3g} 倍：DDP 把梯度加起来，再除以 {len(rows)}"
        yield Hint("factor", en, zh)
    if len(set(rows)) > 1:
        yield Hint(
            "mean-of-means",
            f"with {rows} rows on the ranks the gradient is not that of all rows: the mean of the ranks' means counts a "
            "row on a short rank for more",
            f"各 rank 有 {rows} 行时，梯度不是所有行的：各 rank 平均值的平均，让行少的 rank 里每一行占了更大的比重",
        )
    yield Hint("step", "the weights after the step are wrong", "走完一步，权重不对")


def wrong_told(told: list[Any], right: float, own: list[float]) -> Iterator[Hint]:
    """Check the returned means. ``own``: the means over each rank's rows."""
    if any(type(one) not in (int, float) for one in told):
        raise NoAnswer(Hint("kind", "`step` should return a number", "`step` 应该返回一个数"))
    if all(abs(one - right) < 1e-4 * (1 + abs(right)) for one in told):
        return
    if all(abs(one - mean) < 1e-4 * (1 + mean) for one, mean in zip(told, own, strict=True)):
        yield Hint(
            "own-mean",
            "every rank returns the mean of its own rows only",
            "每个 rank 返回的只是自己那些行的平均",
        )
    shown = ", ".join(f"{one:.4f}" for one in told)
    yield Hint(
        "told",
        f"the ranks return {shown}; the mean over all rows is {right:.4f}",
        f"各 rank 返回 {shown}；所有行的平均是 {right:.4f}",
    )


def wrong_writes(written: list[int]) -> Iterator[Hint]:
    if sum(written) != 1:
        yield Hint(
            "writers",
            f"the file is written {sum(written)} times: by one rank, and once",
            f"文件被写了 {sum(written)} 次：只能由一个 rank 写，写一次",
        )


def wrong_file(saved: object, weight: Tensor) -> Iterator[Hint]:
    if not isinstance(saved, dict):
        yield Hint(
            "unreadable",
            "the file cannot be loaded as weights: save `state_dict()`, not the model",
            "文件不能当作权重加载：要存的是 `state_dict()`，不是模型本身",
        )
    elif list(saved) == ["module.weight"]:
        yield Hint(
            "prefix",
            "the names begin with `module.`: save the model inside the wrapper",
            "名字以 `module.` 开头：要存的是包装里面的模型",
        )
    elif list(saved) != ["weight"] or not same(saved["weight"], weight):
        yield Hint(
            "content", "the file has other names or values than the model", "文件里的名字或值和模型的不一样"
        )


def wrong_waiting(found: list[bool]) -> Iterator[Hint]:
    if not all(found):
        absent = ", ".join(str(rank) for rank, there in enumerate(found) if not there)
        yield Hint(
            "no-wait",
            f"on rank {absent} `save` returns before the file is there: the others wait for the writer (`barrier`)",
            f"在 rank {absent} 上，文件还没写好 `save` 就返回了：其他 rank 要等写的那个（`barrier`）",
        )


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


def _linear(weight: Tensor) -> nn.Linear:
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    return model


@visible("start", "start", en="a function without arguments", zh="一个没有参数的函数")
def _start(student: Student) -> Iterator[Hint]:
    told = ranks.run(student, _start_rank, [{}] * 4, gpus=2, threads=True)
    yield from _stuck(
        told, "the group's numbers are `RANK` and `WORLD_SIZE`", "进程组里用的是 `RANK` 和 `WORLD_SIZE`"
    )
    yield from wrong_group(told["results"])
    yield from wrong_device(told["results"], 2)


def _start_rank(student: Student) -> dict[str, Any]:
    dist.destroy_process_group()
    device, joined = student["start"](), dist.is_initialized()
    return {
        "device": str(device) if isinstance(device, torch.device) else None,
        "kind": type(device).__name__,
        "error": None,
        "current": torch.cuda.current_device(),
        "rank": dist.get_rank() if joined else None,
        "size": dist.get_world_size() if joined else None,
        "backend": [dist.distributed_c10d.get_backend_config()] if joined else [],
    }


def _stuck(told: Any, en: str, zh: str) -> Iterator[Hint]:
    if told["stuck"]:
        yield Hint(
            "stuck", f"a rank waits for one that does not come: {en}", f"有 rank 在等一个不会来的 rank：{zh}"
        )


@visible(
    "loader",
    "loader",
    en="a function of `dataset` and `batch_size`",
    zh="一个以 `dataset` 和 `batch_size` 为参数的函数",
)
def _loader(student: Student) -> Iterator[Hint]:
    told = ranks.run(student, drivers.read_rows, [{"rows": 48, "batch_size": 12}] * 2, threads=True)
    yield from _stuck(told, "every rank makes the same calls", "每个 rank 的通信调用都要一样")
    yield from wrong_rows(told["results"], 48)
    yield from wrong_steps(told["results"], 12)
    yield from wrong_order(told["results"])


@visible(
    "wrap", "wrap", en="a function of `model` and `device`", zh="一个以 `model` 和 `device` 为参数的函数"
)
def _wrap(student: Student) -> Iterator[Hint]:
    def work() -> str:
        model = student["wrap"](_linear(torch.ones(1, 2)), torch.device("cuda", 0))
        model(torch.ones(3, 2, device="cuda:0")).sum().backward()
        # Alone in its group, only a model without wrapper and hooks surely averages nothing.
        hooked = any(one._backward_hooks or one._post_accumulate_grad_hooks for one in model.parameters())
        return type(model).__name__ if isinstance(model, (nn.Linear, nn.DataParallel)) and not hooked else ""

    if kind := alone(work):
        yield Hint(
            "apart",
            f"the model is a {kind}: nobody averages the ranks' gradients",
            f"模型是 {kind}：没有谁去平均各 rank 的梯度",
        )


@visible(
    "step",
    "step",
    en="a function of `model`, `x`, `y` and `optimizer`",
    zh="一个以 `model`、`x`、`y`、`optimizer` 为参数的函数",
)
def _step(student: Student) -> Iterator[Hint]:
    before, x, y = torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.zeros(2, 1)

    def work() -> tuple[Any, Tensor]:
        model = DistributedDataParallel(_linear(before).to("cuda:0"), device_ids=[0])
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
        model = DistributedDataParallel(_linear(weight).to(device), device_ids=[device])
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
    yield from _stuck(told, "every rank calls the `barrier`", "每个 rank 都要调用 `barrier`")
    yield from wrong_waiting(told["results"])
