"""The rubric draws cases for the student, and computes the right results in another way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.plans.split import split as planned
from labkit_classroom.draw import Draw
from labkit_classroom.judging import Ask, NoAnswer, part, read, same
from labkit_classroom.messages import listed, text_maker
from labkit_classroom.verdict import Hint
from labkit_course.kinds import SOME_WHOLE_NUMBERS

from . import drivers

hint = text_maker(Hint, __file__)


def wrong_sizes(rows: int, gpus: int, got: object, right: Sequence[int]) -> Iterator[Hint]:
    """Checks the sizes ``got`` for a split; nothing if they are ``right``."""
    if isinstance(got, Tensor) and got.ndim == 1 and not got.is_floating_point():
        got = got.tolist()
    if isinstance(got, (list, tuple)) and got and all(type(size) is int for size in got):
        sizes = list(got[:2000])  # of any size; what reads other answers has a most
    else:
        sizes = list(read(SOME_WHOLE_NUMBERS, got, en="`split`", zh="`split` "))
    right = list(right)
    if sizes == right:
        return
    known = "sizes"
    if [size for size in sizes if size] == right:
        known = "zeros"
    elif rows > 2**50 and 0 < abs(sizes[0] - right[0]) < 999:
        known = "float"
    elif sizes and len(sizes) <= gpus and max(sizes) - min(sizes) <= 1 and sum(sizes) == rows:
        known = "balanced"
    elif sum(sizes) < rows:
        known = "dropped"
    elif sum(sizes) > rows:
        known = "doubled"
    elif rows // gpus in sizes:
        known = "floor"
    shown = f"{sizes[:12]}".replace("]", ", …]") if len(sizes) > 12 else f"{sizes}"
    yield hint(known, rows=rows, gpus=gpus, shown=shown)


def wrong_entries(got: object, right: list[Any]) -> Iterator[Hint]:
    """Check scatter's entries for one tensor, each (device, values)."""
    entries = pairs(got, "scatter")
    counts, wanted = [len(values) for _, values in entries], [len(values) for _, values in right]
    rows = sum(wanted)
    if same(entries, right):
        return
    if len(counts) > 1 and counts == [rows] * len(counts):
        yield hint("whole", rows=rows, counts=counts)
    if sum(counts) < rows:
        yield hint("dropped", "entries", rows=rows, counts=counts)
    if counts != wanted:
        yield hint("rule", rows=rows, counts=counts, wanted=wanted)
    devices = [device for device, _ in entries]
    if devices != [device for device, _ in right]:
        yield hint("device", devices=listed(devices))
    yield hint("order")


def wrong_structure(got: object, right: list[Any]) -> Iterator[Hint]:
    """Checks the entries for a nested input."""
    if not isinstance(got, (list, tuple)):
        yield hint("kind", name="scatter")
    elif not same(list(got), right):
        if len(got) != len(right):
            yield hint("nested-count", count=len(got), wanted=len(right))
        if type(got[0]) is not type(right[0]):
            yield hint("nested-type", wanted=type(right[0]).__name__, kind=type(got[0]).__name__)
        yield hint("nested")


def wrong_replicas(got: Any, right: list[Tensor], *, tied: bool) -> Iterator[Hint]:
    """Checks replicas and their outputs, without the gradient."""
    yield from wrong_device(got)
    if len(got["replicas"]) != len(right):
        yield hint("count", wanted=len(right), count=len(got["replicas"]))
    if not got["unchanged"]:
        yield hint("moved")
    for at, ((place, values), weights, _) in enumerate(got["replicas"]):
        if weights != [f"cuda:{at}"] or place != f"cuda:{at}":
            yield hint("place", at=at, places=listed(weights))
        if not same(values, right[at], 1e-4):
            yield hint("values", at=at)
    if tied and not all(shared for *_, shared in got["replicas"]):
        yield hint("tied")


def wrong_device(got: Any) -> Iterator[Hint]:
    """Checks that the model itself was not made to be several replicas."""
    if not got["distinct"]:
        yield hint("moved", "device")


def wrong_gradient(got: Tensor | None, right: Tensor) -> Iterator[Hint]:
    if got is None:
        yield hint("no-gradient")
    elif not same(got, right, 1e-3):
        yield hint("gradient")


def wrong_joined(got: object, right: Any) -> Iterator[Hint]:
    """Checks what gather gave; both as (device, values), nested perhaps."""
    if same(got, right, 1e-6):
        return
    if isinstance(right, tuple) and len(right) == 2 and isinstance(right[0], str):
        (place, values), (device, wanted) = (pairs([got], "gather")[0], right)
        if values.shape != wanted.shape:
            yield hint("joined-shape", shape=list(values.shape), wanted=list(wanted.shape))
        if place != device:
            yield hint("joined-place", place=place, device=device)
        yield hint("joined-order")
    if type(got) is not type(right):
        yield hint("joined-type", wanted=type(right).__name__, kind=type(got).__name__)
    yield hint("joined-inside")


def wrong_call(got: Any, right: Tensor, sizes: Sequence[int]) -> Iterator[Hint]:
    """Check the output of one call, and that the GPU of each row agrees with ``sizes``."""
    place, values, where = _row_places(got, right)
    if not same(values, right, 1e-5):
        yield hint("output", shape=list(values.shape), wanted=list(right.shape))
    if place != "cuda:0":
        yield hint("home", place=place)
    if where[:, :2].tolist() != [[gpu, size] for gpu, size in enumerate(sizes) for _ in range(size)]:
        pairs_of = dict.fromkeys((int(gpu), int(rows)) for gpu, rows in where[:, :2].tolist())
        told = ", ".join(f"{rows} on {f'cuda:{gpu}' if gpu >= 0 else 'cpu'}" for gpu, rows in pairs_of)
        yield hint("spread", told=told)


def wrong_count(got: Any, right: Tensor, pieces: int) -> Iterator[Hint]:
    """Checks that no more replicas were made than there are pieces."""
    made = int(_row_places(got, right)[2][:, 2].amax())
    if made != pieces:
        yield hint("too-many", made=made, pieces=pieces)


def _row_places(got: Any, right: Tensor) -> tuple[str, Tensor, Tensor]:
    """The device of the output of a call, what the model computed, and where, row by row."""
    ((place, values),) = pairs([got["output"]], "data_parallel")
    if values.dim() == 2 and values.shape[1] == right.shape[1] + 3 and len(values):
        return place, values[:, :-3], values[:, -3:]
    return place, values, torch.full((1, 3), -1.0)


def pairs(got: object, name: str) -> list[tuple[str, Tensor]]:
    """Reads ``got`` as a list of (device, tensor), as drivers tell of tensors; ends the judging if it is something else."""
    if got is None or got is ...:
        raise NoAnswer(hint("nothing", name=name))
    if not isinstance(got, (list, tuple)):
        raise NoAnswer(hint("kind", name=name))
    for entry in got:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Tensor)):
            raise NoAnswer(hint("kind", "pairs", name=name))
    return [(str(device), values) for device, values in got]


def plain_pairs(got: object) -> list[tuple[int, int]]:
    """``got``, if it is a list of two whole numbers each; else []."""
    entries = list(got) if isinstance(got, (list, tuple)) else []
    fit = all(
        isinstance(one, tuple) and len(one) == 2 and all(type(n) is int for n in one) for one in entries
    )
    return entries if fit else []


def cut(lengths: object, rows: int) -> list[int] | None:
    """The lengths of an answer's own pieces, if it cuts all rows into several; else None."""
    if (
        not isinstance(lengths, list)
        or len(lengths) < 2
        or not all(type(n) is int and n > 0 for n in lengths)
    ):
        return None
    return lengths if sum(lengths) == rows else None


def pieces_of(batch: Tensor, sizes: Sequence[int]) -> list[tuple[str, Tensor]]:
    return [(f"cuda:{gpu}", piece) for gpu, piece in enumerate(batch.split(list(sizes)))]


def scale_weights(weights: Tensor) -> Tensor:
    """Return weights that do not saturate tanh."""
    return weights / 8


def wrong_outputs(got: Sequence[Any], pieces: list[Tensor]) -> Iterator[Hint]:
    """Check the outputs of replicas: replica k adds 100 k."""
    right = [piece + 100 * at for at, piece in enumerate(pieces)]
    if same(got, right):
        return
    if len(got) != len(right):
        yield hint("outputs", wanted=len(right), count=len(got))
    if any(output is None for output in got):
        yield hint("early")
    if all(any(same(output, wanted) for wanted in right) for output in got):
        yield hint("apply-order")
    yield hint("apply-values")


def wrong_meeting(got: object, met: list[int], count: int) -> Iterator[Hint]:
    """Check that the outputs are the numbers given at the meeting, in any order."""
    outputs = got if isinstance(got, (list, tuple)) else []
    numbers = {one.item() for one in outputs if isinstance(one, Tensor) and one.numel() == 1}
    if len(met) != count or not numbers <= set(met):
        yield hint("in-turn")


# The parts of the rubric.

# Functions of torch, the machine and labkit that would be an answer. The last question gets the four steps.
_THEIRS = (
    "torch.nn.parallel", "torch.nn.DataParallel", "torch.cuda.comm", "torch._C",
    "torch.nn.Module._replicate_for_data_parallel",
    "simgpu.torch_api.collectives",
)  # fmt: skip
_OURS = ("labkit.engine", "labkit.plans.split")
WITHOUT: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("split", "scatter", "replicate", "apply", "gather"), (*_THEIRS, *_OURS)
)
WITHOUT["call"] = (
    "torch.nn.parallel.data_parallel", "torch.nn.DataParallel", "torch._C", "labkit.engine.data_parallel",
)  # fmt: skip
NEEDS = {"scatter": ("split",), "call": ("scatter", "replicate", "apply", "gather")}


def numbers(draw: Draw | None) -> dict[str, int | str]:
    """Draw rows and GPUs for question 1, with idle GPUs."""
    rows, gpus = (9, 4) if draw is None else draw.choice(_idle(range(5, 40), range(4, 9)))
    return {"rows": rows, "gpus": gpus, "idle": gpus - len(planned(rows, gpus).sizes)}


def _idle(rows: range, gpus: range) -> list[tuple[int, int]]:
    """Batches with at least as many rows as GPUs that leave GPUs idle all the same."""
    return [(r, g) for r in rows for g in gpus if r >= g and len(planned(r, g).sizes) < g]


def _uneven(draw: Draw) -> tuple[int, int]:
    """Draw rows and GPUs without idle GPUs; the last piece is shorter by at least two rows."""
    cases = [(r, g) for r in range(9, 99) for g in range(2, 9)]
    return draw.choice([(r, g) for r, g in cases if len(s := planned(r, g).sizes) == g and s[0] - s[-1] > 1])


def _sizes(ask: Ask, cases: list[tuple[int, int]]) -> Iterator[Hint]:
    got = ask(drivers.split, cases=cases)
    for (rows, gpus), sizes in zip(cases, got, strict=True):
        yield from wrong_sizes(rows, gpus, sizes, planned(rows, gpus).sizes)


@part(
    "split",
    2,
    en="The rule: pieces of ceil(rows / GPUs) rows, the last one may be short",
    zh="规则：每个分块 ⌈行数 / GPU 数⌉ 行，最后一块可以不满",
)
def rule(ask: Ask, draw: Draw) -> Iterator[Hint]:
    gpus = draw.integer(2, 8)
    even = [(gpus * draw.integer(2, 9), gpus), (draw.integer(1, 99), 1)]
    yield from _sizes(ask, [*even, *(_uneven(draw) for _ in range(8))])


@part("split", 1, en="GPUs that stay idle have no entry", zh="空闲的 GPU 不占一项")
def idle(ask: Ask, draw: Draw) -> Iterator[Hint]:
    few = [(rows, draw.integer(rows + 1, 64)) for rows in (1, draw.integer(2, 30))]
    yield from _sizes(ask, few + draw.sample(_idle(range(5, 60), range(3, 17)), 6))


@part("split", 1, en="Exact and at once, up to 10¹⁷ rows", zh="最多 10¹⁷ 行也立刻算出，一行不差")
def large(ask: Ask, draw: Draw) -> Iterator[Hint]:
    cases = []
    for digits in (12, 14, 16):
        gpus, size = draw.choice((5, 6, 7)), 10**digits + draw.integer(10**5, 10**6)
        cases += [(gpus * size + draw.integer(2, gpus - 1), gpus)]
    yield from _sizes(ask.with_cpu(cpu=1), cases)


@part(
    "scatter",
    2,
    en="A tensor: every row arrives, in order, cut by the rule, on its device",
    zh="张量：每一行都送到，顺序不变，按规则切分，放在对应的设备上",
)
def rows(ask: Ask, draw: Draw) -> Iterator[Hint]:
    sizes = _uneven(draw), draw.choice(_idle(range(5, 60), range(3, 9))), (draw.integer(1, 3), 4)
    cases = [(draw.tensor(count, 3), gpus) for count, gpus in sizes]
    for (batch, gpus), got in zip(cases, ask(drivers.scatter_each, cases=cases), strict=True):
        yield from wrong_entries(got, pieces_of(batch, planned(len(batch), gpus).sizes))


@part(
    "scatter",
    2,
    en="Nested inputs: tuples, lists and dicts are walked, the rest is shared",
    zh="嵌套的输入：元组、列表、字典要递归处理，其余的共用",
)
def nesting(ask: Ask, draw: Draw) -> Iterator[Hint]:
    count, gpus = draw.choice(_idle(range(5, 60), range(3, 9)))
    x, y = draw.tensor(count, 3), draw.tensor(count, 2, 2)
    # A wrong rule costs points in its own part only, so use the sizes of the student's pieces here.
    alone = pairs(ask(drivers.scatter, inputs=x, gpus=gpus), "scatter")
    sizes = cut([len(values) for _, values in alone], count) or planned(count, gpus).sizes
    pieces = list(zip(pieces_of(x, sizes), pieces_of(y, sizes), strict=True))
    word, number = draw.choice(["mean", "sum"]), draw.integer(1, 99)
    cases: list[tuple[Any, list[Any]]] = [
        ((x, number), [(a, number) for a, _ in pieces]),
        ([x, word, y], [[a, word, b] for a, b in pieces]),
        (
            {"x": x, "how": {"y": y, "mode": word}},
            [{"x": a, "how": {"y": b, "mode": word}} for a, b in pieces],
        ),
        ((x, [y, None]), [(a, [b, None]) for a, b in pieces]),
    ]
    found = ask(drivers.scatter_each, cases=[(inputs, gpus) for inputs, _ in cases])
    for got, (_, right) in zip(found, cases, strict=True):
        yield from wrong_structure(got, right)


@part("scatter", 1, en="Gradients come back to the batch", zh="梯度能传回批次")
def scatter_gradient(ask: Ask, draw: Draw) -> Iterator[Hint]:
    count, gpus = _uneven(draw)
    lengths, gradient = ask(drivers.scatter_backward, batch=draw.tensor(count, 3), gpus=gpus)
    sizes = cut(lengths, count) or planned(count, gpus).sizes
    if not same(gradient, torch.cat([torch.full((size, 3), k + 1.0) for k, size in enumerate(sizes)])):
        yield hint("detached")


@part(
    "scatter",
    1,
    en="The work grows with the rows, not with their square",
    zh="工作量和行数成正比，不和行数的平方成正比",
)
def linear(ask: Ask, draw: Draw) -> Iterator[Hint]:
    count, gpus = 60 * draw.integer(1200, 1300) + 1, draw.integer(2, 4)  # always with a rest
    got = ask.with_cpu(cpu=2)(drivers.scatter_sizes, rows=count, columns=16, gpus=gpus)
    sizes = cut([size for size, _ in plain_pairs(got)], count) or planned(count, gpus).sizes
    if not same(got, [(size, sum(sizes[:k])) for k, size in enumerate(sizes)]):
        yield hint("large-rows")


def _net(draw: Draw, *, tied: bool) -> tuple[Tensor, Tensor, list[Tensor], Any]:
    """Weights and a batch, the outputs of three replicas for it, and the gradient of the first weight."""
    weights, batch = scale_weights(draw.tensor(3, 96, 96)) / 5, draw.tensor(draw.integer(2, 5), 96)
    model = drivers.Net(weights, tied, buffer=False)
    output = model(batch)
    (output.sum() * (1 + 2 + 3)).backward()
    gradient = model.body[0].weight.grad
    return weights, batch, [output.detach()] * 3, gradient


@part(
    "replicate",
    2,
    en="A replica on each device computes what the model computes; the model stays as it is",
    zh="每个设备上的副本算出和模型一样的结果；模型保持原样",
)
def copies(ask: Ask, draw: Draw) -> Iterator[Hint]:
    weights, batch, right, _ = _net(draw, tied=False)  # without a buffer, which is another part
    got = ask(drivers.replicate, weights=weights, batch=batch, gpus=3, tied=False, buffer=False)
    yield from wrong_replicas(got, right, tied=False)


@part(
    "replicate",
    2,
    en="`backward()` puts the sum of the replicas' gradients into the model",
    zh="`backward()` 把各副本梯度的总和放进模型",
)
def gradients(ask: Ask, draw: Draw) -> Iterator[Hint]:
    weights, batch, _, right = _net(draw, tied=False)
    got = ask(drivers.replicate, weights=weights, batch=batch, gpus=3, tied=False, buffer=False)
    yield from wrong_device(got)
    yield from wrong_gradient(got["gradient"], right)


@part("replicate", 1, en="Buffers travel too", zh="缓冲区也跟着走")
def buffers(ask: Ask, draw: Draw) -> Iterator[Hint]:
    weights, *_ = _net(draw, tied=False)
    got = ask(drivers.replicate_buffer, weights=weights, gpus=3)
    for at, (place, values) in enumerate(got):
        if place != f"cuda:{at}":
            yield hint("buffer", at=at, place=place)
        if not same(values, weights[2, 0]):
            yield hint("buffer-value")


@part("replicate", 1, en="A weight that two layers share stays one weight", zh="两层共用的权重仍是同一个权重")
def sharing(ask: Ask, draw: Draw) -> Iterator[Hint]:
    weights, batch, right, gradient = _net(draw, tied=True)
    got = ask(drivers.replicate, weights=weights, batch=batch, gpus=3, tied=True, buffer=False)
    yield from wrong_replicas(got, right, tied=True)
    yield from wrong_gradient(got["gradient"], gradient)


@part(
    "apply",
    1,
    en="Replica k computes piece k; outputs in the order of the pieces",
    zh="副本 k 计算分块 k；输出按分块的顺序",
)
def order(ask: Ask, draw: Draw) -> Iterator[Hint]:
    pieces = [draw.tensor(draw.integer(1, 4), 2) for _ in range(draw.integer(2, 5))]
    yield from wrong_outputs(ask(drivers.apply_order, pieces=pieces), pieces)


@part("apply", 2, en="All replicas run at the same time", zh="所有副本同时运行")
def runs_in_parallel(ask: Ask, draw: Draw) -> Iterator[Hint]:
    count = draw.integer(3, 6)
    yield from wrong_meeting(*ask.meeting(count, drivers.apply_together, count=count), count)


@part("apply", 1, en="An error in a replica reaches the caller", zh="副本里的错误会传到调用者")
def errors(ask: Ask, draw: Draw) -> Iterator[Hint]:
    count = draw.integer(2, 4)
    for kind, named in ask(drivers.apply_errors, count=count, failing=draw.sample(range(count), 2)):
        if kind is None:
            yield hint("swallowed")
        if kind != "Planned" or not named:
            yield hint("other-error", kind=kind)


@part(
    "apply",
    1,
    en="`torch.no_grad()` of the caller holds in the threads",
    zh="调用者的 `torch.no_grad()` 在线程里也有效",
)
def grad_mode(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for enabled in (True, False):
        got = ask(drivers.apply_grad_mode, enabled=enabled)
        if not same(got, [enabled] * 3):
            yield hint("grad-mode")


@part(
    "gather",
    1,
    en="Tensors are joined along dimension 0, on the device",
    zh="张量沿第 0 维拼接，放在指定的设备上",
)
def concatenation(ask: Ask, draw: Draw) -> Iterator[Hint]:
    devices = "cuda:0", "cuda:2"
    batches = [draw.tensor(draw.integer(8, 30), 2) for _ in devices]
    outputs = [list(batch.split(planned(len(batch), 3).sizes)) for batch in batches]
    found = ask(drivers.gather_each, cases=list(zip(outputs, devices, strict=True)), gpus=3)
    for got, *right in zip(found, devices, batches, strict=True):
        yield from wrong_joined(got, tuple(right))


@part("gather", 1, en="Gradients come back to each output", zh="梯度能传回每一份输出")
def gather_gradient(ask: Ask, draw: Draw) -> Iterator[Hint]:
    count = draw.integer(8, 30)
    right = (torch.arange(1.0, count + 1)[:, None] * torch.ones(2)).split(planned(count, 3).sizes)
    outputs = list(draw.tensor(count, 2).split(planned(count, 3).sizes))
    if not same(ask(drivers.gather_backward, outputs=outputs), list(right)):
        yield hint("detached", "outputs")


@part("gather", 1, en="Tuples, lists and dicts of tensors", zh="由张量组成的元组、列表、字典")
def structures(ask: Ask, draw: Draw) -> Iterator[Hint]:
    count = draw.integer(8, 30)
    x, y = draw.tensor(count, 2), draw.tensor(count, 3)
    both = list(zip(*(t.split(planned(count, 3).sizes) for t in (x, y)), strict=True))
    a, b = ("cuda:0", x), ("cuda:0", y)
    cases: list[tuple[list[Any], Any]] = [
        ([(one, two) for one, two in both], (a, b)),
        ([[one, two] for one, two in both], [a, b]),
        ([{"scores": one, "more": (two,)} for one, two in both], {"scores": a, "more": (b,)}),
    ]
    found = ask(drivers.gather_each, cases=[(outputs, "cuda:0") for outputs, _ in cases], gpus=3)
    for got, (_, right) in zip(found, cases, strict=True):
        yield from wrong_joined(got, right)


@part("gather", 1, en="Scalars become a vector", zh="标量合成一个向量")
def scalars(ask: Ask, draw: Draw) -> Iterator[Hint]:
    losses = draw.tensor(3)
    got = ask(drivers.gather, outputs=list(losses.unbind()), device="cuda:0", gpus=3)
    yield from wrong_joined(got, ("cuda:0", losses))


def _run_call(ask: Ask, draw: Draw, rows: int, gpus: int) -> tuple[Any, Tensor, Tensor, tuple[int, ...]]:
    """Makes one call; gives what came, the right output and gradient, and the sizes of the pieces."""
    weights, batch = scale_weights(draw.tensor(4, 3)), draw.tensor(rows, 4)
    weight = weights.clone().requires_grad_()
    output = (batch @ weight).tanh()
    output.sum().backward()
    assert weight.grad is not None
    got = ask(drivers.call, weights=weights, batch=batch, gpus=gpus)
    return got, output.detach(), weight.grad, planned(rows, gpus).sizes


@part(
    "call",
    2,
    en="The output for the whole batch, on the first device, computed by all",
    zh="整个批次的输出，放在第一个设备上，由所有设备一起算出",
)
def output(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, right, _, sizes = _run_call(ask, draw, *_uneven(draw))
    yield from wrong_call(got, right, sizes)


@part("call", 1, en="No replica for a GPU without rows", zh="没有分到行的 GPU 不制作副本")
def few(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, right, _, sizes = _run_call(ask, draw, *draw.choice(_idle(range(5, 60), range(3, 9))))
    yield from wrong_call(got, right, sizes)
    yield from wrong_count(got, right, len(sizes))


@part("call", 1, en="Gradients reach the model", zh="梯度能传到模型")
def model_gradients(ask: Ask, draw: Draw) -> Iterator[Hint]:
    got, _, right, _ = _run_call(ask, draw, *_uneven(draw))
    pairs([got["output"]], "data_parallel")
    yield from wrong_gradient(got["gradient"], right)
