"""The rubric draws ranks, rows and weights for the student, and computes the right results in another way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit_classroom.draw import Draw
from labkit_classroom.judging import Ask, part
from labkit_classroom.sandbox.inside.ranks import MODULES
from labkit_classroom.verdict import Hint

from . import checks, drivers

PRELOAD, APART = MODULES, ("start", "loader", "wrap", "step", "save")
WITHOUT = dict.fromkeys(APART, ("labkit.engine", "torch.nn.DataParallel"))


def numbers(draw: Draw | None) -> dict[str, int | str]:
    """The batch of the script."""
    return {"batch": 24 if draw is None else 12 * draw.integer(2, 8)}


def _start(ask: Ask, draw: Draw) -> Iterator[tuple[list[Any], int]]:
    """Yield what the ranks returned, and how many GPUs a machine has."""
    for nodes, gpus in ((1, draw.integer(2, 3)), (2, 2)):
        yield ask(drivers.start, nodes=nodes, gpus=gpus), gpus


@part(
    "start",
    2,
    en="The group knows every rank, on one machine and on two",
    zh="一台、两台机器上，进程组都认得每个 rank",
)
def group(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for told, _ in _start(ask, draw):
        yield from checks.wrong_group(told)
        yield from checks.wrong_exchange(told)


@part(
    "start",
    2,
    en="Each process has its own GPU of its machine, as the current one",
    zh="每个进程用本机上属于自己的那块 GPU，并设为当前设备",
)
def device(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for told, gpus in _start(ask, draw):
        yield from checks.wrong_device(told, gpus)


def _read(ask: Ask, draw: Draw) -> Iterator[tuple[list[Any], int, int]]:
    """Gives what the ranks read in two epochs, how many rows there are, and the batch size."""
    for size in draw.sample((2, 3, 4), 2):
        batch = size * draw.integer(2, 6)
        rows = batch * draw.integer(3, 5)
        yield ask(drivers.loader, rows=rows, batch_size=batch, size=size), rows, batch


@part("loader", 2, en="Every row is read by one rank", zh="每一行都由一个 rank 读到")
def one_rank_per_row(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for epochs, rows, _ in _read(ask, draw):
        yield from checks.wrong_rows(epochs, rows)


@part("loader", 1, en="A step has as many rows as the script's", zh="一步的行数和原脚本一样")
def per_step(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for epochs, _, batch in _read(ask, draw):
        yield from checks.wrong_steps(epochs, batch)


@part("loader", 1, en="Shuffled, and anew in every epoch", zh="打乱顺序，而且每一轮（epoch）都重新打乱")
def shuffle(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for epochs, rows, _ in _read(ask, draw):
        yield from checks.wrong_order(epochs)
        yield from checks.wrong_rows(epochs, rows)


def _run_wrap(ask: Ask, draw: Draw, size: int) -> tuple[list[Any], list[Tensor], Tensor]:
    """Return the reply, the ranks' first weights, and the average gradient."""
    weights = [draw.tensor(2, 3) for _ in range(size)]
    x = [draw.tensor(draw.integer(2, 5), 3) / 4 for _ in range(size)]
    weight = weights[0].clone().requires_grad_()
    (torch.stack([(rows @ weight.T).square().sum() for rows in x]).sum() / size).backward()
    assert weight.grad is not None
    return ask(drivers.wrap, weights=weights, x=x), weights, weight.grad


@part(
    "wrap", 2, en="The average gradient, on each rank's own device", zh="每个 rank 在自己的设备上得到平均梯度"
)
def average(ask: Ask, draw: Draw) -> Iterator[Hint]:
    told, _, gradient = _run_wrap(ask, draw, draw.integer(2, 3))
    yield from checks.wrong_gradient(told, gradient)


@part("wrap", 1, en="All begin with the weights of rank 0", zh="一开始大家都用 rank 0 的权重")
def begin(ask: Ask, draw: Draw) -> Iterator[Hint]:
    told, weights, _ = _run_wrap(ask, draw, draw.integer(2, 3))
    yield from checks.wrong_start(told, weights[0])


def _uneven_rows(draw: Draw) -> list[int]:
    return draw.sample(range(1, 9), draw.integer(2, 3))


def _run_step(
    ask: Ask, draw: Draw, rows: list[int]
) -> tuple[Any, list[Any], Tensor, Tensor, float, list[float]]:
    """Return the reply, its means, the right weights, the first weights, the right mean, and the mean of each rank."""
    before = draw.tensor(2, 3) / 4
    x = [draw.tensor(count, 3) / 4 for count in rows]
    y = [draw.tensor(count, 2) / 4 + rank for rank, count in enumerate(rows)]  # no two ranks have a like mean
    weight = before.clone().requires_grad_()
    losses = [(rows @ weight.T - wanted).square().mean(dim=1) for rows, wanted in zip(x, y, strict=True)]
    mean = torch.cat(losses).mean()
    mean.backward()
    assert weight.grad is not None
    told = ask(drivers.step, weight=before, x=x, y=y)
    own = [float(loss.detach().mean()) for loss in losses]
    means = [one for _, one, _ in told["results"]]
    return told, means, before - weight.grad, before, float(mean.detach()), own


@part(
    "step",
    1,
    en="The script's step, with as many rows on every rank",
    zh="各 rank 行数相同时，走的一步和原脚本一样",
)
def even(ask: Ask, draw: Draw) -> Iterator[Hint]:
    rows = [draw.integer(2, 5)] * draw.integer(2, 3)
    told, _, right, before, _, _ = _run_step(ask, draw, rows)
    yield from checks.wrong_step(told, right, before, rows)


@part(
    "step",
    2,
    en="The script's step, with different numbers of rows",
    zh="各 rank 行数不同时，走的一步也和原脚本一样",
)
def uneven(ask: Ask, draw: Draw) -> Iterator[Hint]:
    rows = _uneven_rows(draw)
    told, _, right, before, _, _ = _run_step(ask, draw, rows)
    yield from checks.wrong_step(told, right, before, rows)


@part("step", 1, en="Returns the mean over all rows of all ranks", zh="返回所有 rank 所有行的平均")
def mean(ask: Ask, draw: Draw) -> Iterator[Hint]:
    _, told, _, _, right, own = _run_step(ask, draw, _uneven_rows(draw))
    yield from checks.wrong_told(told, right, own)


@part("save", 2, en="One rank writes, with the script's names", zh="只有一个 rank 写文件，名字和原脚本的一样")
def writes_once(ask: Ask, draw: Draw) -> Iterator[Hint]:
    weight = draw.tensor(2, 3)
    got = ask(drivers.save, weight=weight, size=draw.integer(2, 3))
    yield from checks.wrong_writes(got["written"])
    yield from checks.wrong_file(got["saved"], weight)


@part(
    "save", 1, en="When it returns, the file is there, on every rank", zh="在每个 rank 上，返回时文件都已写好"
)
def file_exists(ask: Ask, draw: Draw) -> Iterator[Hint]:
    weight = draw.tensor(2, 3)
    got = ask(drivers.save, weight=weight, size=draw.integer(2, 3))
    yield from checks.wrong_waiting(got["found"])
