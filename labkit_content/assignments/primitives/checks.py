"""Hints for wrong answers, and the student's ``check(...)``, which tries open examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.plans.split import split as planned
from labkit_classroom.checking import MeetingPoint, Student, visible
from labkit_classroom.judging import NoAnswer, read, same
from labkit_classroom.verdict import Hint
from labkit_course.kinds import SOME_WHOLE_NUMBERS

from . import drivers

# fmt: off
DROPPED = Hint(
    "dropped",
    "rows are lost: together the pieces have fewer rows than the batch (`//` rounds down)",
    "有的行丢了：各分块的行数加起来比批次少（`//` 是向下取整）",
)
BALANCED = Hint(
    "balanced",
    "the rows are dealt out as evenly as possible; PyTorch does not do that: every piece has ceil(rows / GPUs) rows, "
    "until the rows are used up",
    "这是尽量均分的切法；PyTorch 不这样切：每个分块都是 ⌈行数 / GPU 数⌉ 行，直到行分完",
)
FLOOR = Hint(
    "floor",
    "the pieces have floor(rows / GPUs) rows and one takes the rest; the rule rounds up, and the last piece is short",
    "每个分块取了 ⌊行数 / GPU 数⌋ 行，余下的都塞给一块；规则是向上取整，最后一块可以不满",
)
ZEROS = Hint(
    "zeros",
    "the sizes are right, but GPUs without rows are in the list too; they get no piece at all",
    "大小是对的，但没有分到行的 GPU 也写进了列表；它们根本没有分块",
)
DOUBLED = Hint(
    "doubled",
    "together the pieces have more rows than the batch: the last piece is short",
    "各分块的行数加起来比批次还多：最后一块应该是不满的",
)
INEXACT = Hint(
    "float",
    "large counts come out inexact: `/` makes a float, which has only 53 bits; `-(-rows // gpus)` stays whole",
    "数很大时结果不精确：`/` 得到的是浮点数，只有 53 位精度；`-(-rows // gpus)` 始终是整数",
)
# fmt: on


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
    floor = rows // gpus
    known = None
    if [size for size in sizes if size] == right:
        known = ZEROS
    elif rows > 2**50 and 0 < abs(sizes[0] - right[0]) < 999:
        known = INEXACT
    elif sizes and len(sizes) <= gpus and max(sizes) - min(sizes) <= 1 and sum(sizes) == rows:
        known = BALANCED
    elif sum(sizes) < rows:
        known = DROPPED
    elif sum(sizes) > rows:
        known = DOUBLED
    elif floor in sizes:
        known = FLOOR
    shown = f"{sizes[:12]}".replace("]", ", …]") if len(sizes) > 12 else f"{sizes}"
    case_en, case_zh = f"{rows} rows on {gpus} GPUs give {shown}", f"{rows} 行、{gpus} 块 GPU，得到 {shown}"
    if known:
        yield Hint(known.id, f"{case_en}: {known.en}", f"{case_zh}：{known.zh}")
    yield Hint("sizes", f"{case_en}, which is not the rule", f"{case_zh}，不符合切分规则")


def wrong_entries(got: object, right: list[Any]) -> Iterator[Hint]:
    """Check scatter's entries for one tensor, each (device, values)."""
    entries = pairs(got, "scatter")
    counts, wanted = [len(values) for _, values in entries], [len(values) for _, values in right]
    rows = sum(wanted)
    case_en, case_zh = f"{rows} rows on the GPUs come out as {counts}", f"{rows} 行分发后是 {counts}"
    if same(entries, right):
        return
    if len(counts) > 1 and counts == [rows] * len(counts):
        yield Hint(
            "whole",
            f"{case_en}: every device has the whole batch; it is to be cut",
            f"{case_zh}：每个设备都拿到了整个批次；应该切开",
        )
    if sum(counts) < rows:
        yield Hint("dropped", f"{case_en}: rows are lost", f"{case_zh}：有的行丢了")
    if counts != wanted:
        yield Hint(
            "rule",
            f"{case_en}; by the rule of question 1 they are {wanted}",
            f"{case_zh}；按第 1 题的规则应该是 {wanted}",
        )
    devices = [device for device, _ in entries]
    if devices != [device for device, _ in right]:
        yield Hint(
            "device",
            f"the pieces are on {', '.join(devices)}: piece k belongs on device k",
            f"分块在 {'、'.join(devices)} 上：第 k 个分块应该在第 k 个设备上",
        )
    yield Hint(
        "order",
        "the pieces have the right sizes but other rows: neighbouring rows stay together, in order",
        "各分块大小对了，里面的行不对：分块是相邻的行，顺序不变",
    )


def wrong_structure(got: object, right: list[Any]) -> Iterator[Hint]:
    """Checks the entries for a nested input."""
    if not isinstance(got, (list, tuple)):
        yield no_list("scatter")
    elif not same(list(got), right):
        if len(got) != len(right):
            yield Hint(
                "nested-count",
                f"a nested input gives {len(got)} entries instead of {len(right)}: one for each device that gets work",
                f"嵌套的输入得到 {len(got)} 项，应该是 {len(right)} 项：每个有活干的设备一项",
            )
        if type(got[0]) is not type(right[0]):
            yield Hint(
                "nested-type",
                f"a {type(right[0]).__name__} becomes a {type(got[0]).__name__}: each entry is like the input",
                f"输入是 {type(right[0]).__name__}，得到的却是 {type(got[0]).__name__}：每一项的结构应和输入相同",
            )
        yield Hint(
            "nested",
            "what is inside a nested input is not cut and placed as a tensor by itself is; or what is no tensor is not "
            "shared as it is",
            "嵌套在里面的张量没有像单独的张量那样切开、放好；或者不是张量的东西没有原样共用",
        )


NO_SCATTER_GRADIENT = Hint(
    "detached",
    "no gradient comes back from the pieces to the batch: `detach`, `.data`, `torch.tensor(…)` and `no_grad` cut the way",
    "梯度没能从分块传回批次：`detach`、`.data`、`torch.tensor(…)`、`no_grad` 都会切断反向的路",
)


def wrong_replicas(got: Any, right: list[Tensor], *, tied: bool) -> Iterator[Hint]:
    """Checks replicas and their outputs, without the gradient."""
    yield from wrong_device(got)
    if len(got["replicas"]) != len(right):
        yield Hint(
            "count",
            f"{len(right)} devices get {len(got['replicas'])} replicas",
            f"{len(right)} 个设备得到 {len(got['replicas'])} 个副本",
        )
    if not got["unchanged"]:
        yield Hint(
            "moved",
            "afterwards `model` itself is on another device, or has other parameters: a module's `.to()` works in place",
            "做完之后，`model` 自己换了设备，或者参数换了：模块的 `.to()` 是原地移动",
        )
    for at, ((place, values), weights, _) in enumerate(got["replicas"]):
        if weights != [f"cuda:{at}"] or place != f"cuda:{at}":
            yield Hint(
                "place",
                f"the weights of replica {at} are on {', '.join(weights)}, not on cuda:{at}",
                f"副本 {at} 的权重在 {'、'.join(weights)} 上，不在 cuda:{at} 上",
            )
        if not same(values, right[at], 1e-4):
            yield Hint(
                "values",
                f"replica {at} computes something else than `model`",
                f"副本 {at} 算出来的和 `model` 不一样",
            )
    if tied and not all(shared for *_, shared in got["replicas"]):
        yield Hint(
            "tied",
            "two layers that share a weight have two different ones in a replica: `named_parameters()` names a shared "
            "weight once only",
            "原来共用一个权重的两层，在副本里变成了两个不同的权重：`named_parameters()` 对共用的权重只报一次名",
        )


def wrong_device(got: Any) -> Iterator[Hint]:
    """Checks that the model itself was not made to be several replicas."""
    if not got["distinct"]:
        yield Hint(
            "moved",
            "`model` itself is among the replicas more than once, and is now on another device: a module's `.to()` "
            "works in place",
            "同一个 `model` 充当了好几个副本，而且被移到了别的设备上：模块的 `.to()` 是原地移动",
        )


def wrong_gradient(got: Tensor | None, right: Tensor) -> Iterator[Hint]:
    if got is None:
        yield Hint(
            "no-gradient",
            "after `backward()` the parameters of `model` have no gradient: a deep copy is a model of its own; a "
            "replica's weights must be results of copying",
            "`backward()` 之后 `model` 的参数没有梯度：深拷贝出来的是各自独立的模型；副本的权重必须是拷贝运算的结果",
        )
    elif not same(got, right, 1e-3):
        yield Hint(
            "gradient",
            "the gradient in `model` is not the sum over all replicas",
            "`model` 里的梯度不是所有副本梯度的总和",
        )


def wrong_joined(got: object, right: Any) -> Iterator[Hint]:
    """Checks what gather gave; both as (device, values), nested perhaps."""
    if same(got, right, 1e-6):
        return
    if isinstance(right, tuple) and len(right) == 2 and isinstance(right[0], str):
        (place, values), (device, wanted) = (pairs([got], "gather")[0], right)
        if values.shape != wanted.shape:
            yield Hint(
                "joined-shape",
                f"what is joined is {list(values.shape)}, {list(wanted.shape)} is wanted",
                f"拼接的结果是 {list(values.shape)}，应该是 {list(wanted.shape)}",
            )
        if place != device:
            yield Hint(
                "joined-place",
                f"what is joined is on {place}, {device} was asked for",
                f"拼接的结果在 {place} 上，要求的是 {device}",
            )
        yield Hint("joined-order", "the rows are in another order", "行的顺序不对")
    if type(got) is not type(right):
        yield Hint(
            "joined-type",
            f"outputs that are {type(right).__name__}s become a {type(got).__name__}",
            f"各副本输出的是 {type(right).__name__}，合起来却成了 {type(got).__name__}",
        )
    yield Hint(
        "joined-inside",
        "inside, the tensors are not joined over the replicas, each with its like",
        "里面的张量没有按位置对应、跨副本拼接起来",
    )


NO_GATHER_GRADIENT = Hint(
    "detached",
    "no gradient comes back to the outputs, or another one: is it made by `cat` of the outputs themselves?",
    "梯度没能传回各份输出，或者传回的不对：拼接的结果是直接对这些输出做 `cat` 得到的吗？",
)


def wrong_call(got: Any, right: Tensor, sizes: Sequence[int]) -> Iterator[Hint]:
    """Check the output of one call, and that the GPU of each row agrees with ``sizes``."""
    place, values, where = _row_places(got, right)
    if not same(values, right, 1e-5):
        yield Hint(
            "output",
            f"the output, {list(values.shape)}, is not what `model` gives for the whole batch, {list(right.shape)}",
            f"输出 {list(values.shape)} 和 `model` 对整个批次的输出 {list(right.shape)} 不一样",
        )
    if place != "cuda:0":
        yield Hint(
            "home", f"the output is on {place}, not on devices[0]", f"输出在 {place} 上，不在 devices[0] 上"
        )
    if where[:, :2].tolist() != [[gpu, size] for gpu, size in enumerate(sizes) for _ in range(size)]:
        pairs_of = dict.fromkeys((int(gpu), int(rows)) for gpu, rows in where[:, :2].tolist())
        told = ", ".join(f"{rows} on {f'cuda:{gpu}' if gpu >= 0 else 'cpu'}" for gpu, rows in pairs_of)
        yield Hint(
            "spread",
            f"the output is right, but the rows were not computed where they belong: {told}",
            f"输出是对的，但这些行没有在该算的地方算：{told}",
        )


def wrong_count(got: Any, right: Tensor, pieces: int) -> Iterator[Hint]:
    """Checks that no more replicas were made than there are pieces."""
    made = int(_row_places(got, right)[2][:, 2].amax())
    if made != pieces:
        yield Hint(
            "too-many",
            f"{made} replicas were made for {pieces} pieces: scatter first, then it is known how many",
            f"只有 {pieces} 个分块，却制作了 {made} 个副本：先分发，才知道需要几个",
        )


def _row_places(got: Any, right: Tensor) -> tuple[str, Tensor, Tensor]:
    """The device of the output of a call, what the model computed, and where, row by row."""
    ((place, values),) = pairs([got["output"]], "data_parallel")
    if values.dim() == 2 and values.shape[1] == right.shape[1] + 3 and len(values):
        return place, values[:, :-3], values[:, -3:]
    return place, values, torch.full((1, 3), -1.0)


def no_list(name: str) -> Hint:
    return Hint("kind", f"`{name}` has to return a list", f"`{name}` 应该返回一个列表")


def pairs(got: object, name: str) -> list[tuple[str, Tensor]]:
    """Reads ``got`` as a list of (device, tensor), as drivers tell of tensors; ends the judging if it is something else."""
    if got is None or got is ...:
        raise NoAnswer(Hint("nothing", f"`{name}` gives nothing back yet", f"`{name}` 还没有返回任何东西"))
    if not isinstance(got, (list, tuple)):
        raise NoAnswer(no_list(name))
    for entry in got:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Tensor)):
            raise NoAnswer(
                Hint(
                    "kind",
                    f"`{name}`: a tensor is wanted here, and it is something else",
                    f"`{name}`：这里要的是张量，得到的是别的东西",
                )
            )
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


@visible("split", "split", en="a function of `rows` and `gpus`", zh="一个以 `rows` 和 `gpus` 为参数的函数")
def _split(student: Student) -> Iterator[Hint]:
    numbers = student["numbers"]
    mine = numbers.get("rows", 9), numbers.get("gpus", 4)
    for rows, gpus in ((8, 4), (30, 8), mine, (2, 4)):
        yield from wrong_sizes(
            rows, gpus, drivers.split(student, [(rows, gpus)])[0], planned(rows, gpus).sizes
        )


@visible(
    "scatter",
    "scatter",
    en="a function of `inputs` and `devices`",
    zh="一个以 `inputs` 和 `devices` 为参数的函数",
)
def _scatter(student: Student) -> Iterator[Hint]:
    batch = torch.arange(10.0)[:, None] * torch.ones(3)
    yield from wrong_entries(
        drivers.scatter(student, batch, 4), pieces_of(batch, planned(len(batch), 4).sizes)
    )
    yield from wrong_structure(
        drivers.scatter(student, (batch, 3), 2),
        [(piece, 3) for piece in pieces_of(batch, planned(len(batch), 2).sizes)],
    )


@visible(
    "replicate",
    "replicate",
    en="a function of `model` and `devices`",
    zh="一个以 `model` 和 `devices` 为参数的函数",
)
def _replicate(student: Student) -> Iterator[Hint]:
    weights, batch = scale_weights(torch.eye(3).repeat(3, 1, 1)), torch.ones(2, 3)
    got = drivers.replicate(student, weights, batch, 2, False, False)
    with torch.no_grad():
        output = drivers.Net(weights, False, False)(batch)
    yield from wrong_replicas(got, [output, output], tied=False)
    if got["gradient"] is None:
        yield from wrong_gradient(None, weights[0])


@visible(
    "apply",
    "parallel_apply",
    en="a function of `replicas` and `pieces`",
    zh="一个以 `replicas` 和 `pieces` 为参数的函数",
)
def _apply(student: Student) -> Iterator[Hint]:
    pieces = [torch.full((2,), float(at)) for at in range(3)]
    yield from wrong_outputs(drivers.apply_order(student, pieces), pieces)
    yield from wrong_meeting(drivers.apply_together(student, MeetingPoint(3), 3), [1, 2, 3], 3)


@visible(
    "gather",
    "gather",
    en="a function of `outputs` and `device`",
    zh="一个以 `outputs` 和 `device` 为参数的函数",
)
def _gather(student: Student) -> Iterator[Hint]:
    batch = torch.arange(10.0)[:, None] * torch.ones(3)
    outputs = list(batch.split(planned(10, 3).sizes))
    yield from wrong_joined(drivers.gather(student, outputs, "cuda:0", 3), ("cuda:0", batch))


@visible(
    "call",
    "data_parallel",
    en="a function of `model`, `batch` and `devices`",
    zh="一个以 `model`、`batch`、`devices` 为参数的函数",
)
def _call(student: Student) -> Iterator[Hint]:
    weights, batch = scale_weights(torch.eye(3)), torch.arange(15.0).reshape(5, 3) / 4
    right = (batch @ weights).tanh()
    got = drivers.call(student, weights, batch, 3)
    yield from wrong_call(got, right, planned(len(batch), 3).sizes)
    yield from wrong_count(got, right, 3)


def wrong_outputs(got: Sequence[Any], pieces: list[Tensor]) -> Iterator[Hint]:
    """Check the outputs of replicas: replica k adds 100 k."""
    right = [piece + 100 * at for at, piece in enumerate(pieces)]
    if same(got, right):
        return
    if len(got) != len(right):
        yield Hint(
            "outputs",
            f"{len(right)} pieces give {len(got)} outputs",
            f"{len(right)} 个分块得到 {len(got)} 份输出",
        )
    if any(output is None for output in got):
        yield Hint(
            "early",
            "an output is missing: the function returned before all threads had ended (`join`)",
            "少了输出：线程还没有全部结束，函数就返回了（要 `join`）",
        )
    if all(any(same(output, wanted) for wanted in right) for output in got):
        yield Hint(
            "apply-order",
            "the outputs are in the order in which the replicas were done, not in that of the pieces",
            "输出的顺序是副本完成的先后，不是分块的顺序",
        )
    yield Hint("apply-values", "replica k did not compute piece k", "副本 k 算的不是分块 k")


def wrong_meeting(got: object, met: list[int], count: int) -> Iterator[Hint]:
    """Check that the outputs are the numbers given at the meeting, in any order."""
    outputs = got if isinstance(got, (list, tuple)) else []
    numbers = {one.item() for one in outputs if isinstance(one, Tensor) and one.numel() == 1}
    if len(met) != count or not numbers <= set(met):
        yield Hint(
            "in-turn",
            "the replicas run one after the other: start all threads before you wait for the first (`join`)",
            "副本是一个接一个运行的：先启动全部线程，再等待第一个（`join`）",
        )
