"""What a Chinese reader prints is Chinese: plans, traces, graphs of waits; PyTorch's words and labkit's names stay."""

import ast
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import labkit
from labkit.cost.sizes import MODELS
from labkit.plans.footprint import Occupancy, data_parallel_memory
from labkit.plans.ring import ring_all_reduce, star_all_reduce
from labkit.plans.shapes import Cut
from labkit.trace.curves import Curves
from labkit.trace.memory import STEP, MemorySample, MemoryTimeline
from labkit.trace.trace import Trace
from labkit_diagnose.findings import list_some
from labkit_ranks.calls.faults.report import format_ranks
from labkit_ranks.calls.wait_graph import Wait, WaitForGraph

LABKIT = Path(labkit.__file__).parent
# Names: of PyTorch's calls and steps, of labkit's classes, of hardware and units.
NAMES = {
    "GPU", "rank", "cuda", "cpu", "DDP", "Trace", "Call", "WaitForGraph", "scatter", "replicate", "parallel", "apply",
    "gather", "forward", "backward", "ms", "s", "B", "one", "two", "all", "reduce", "train", "py", "copy",
    "V", "NVLink", "Gb", "InfiniBand", "GPipe", "W", "dp", "tp", "pp", "sp", "zero", "micro", "MFU", "TFLOPS", "GiB",
    "token", "H", "SXM", "Llama", "recompute",
    "True", "False", "gathered",
}  # fmt: skip


def a_call():
    with labkit.simulate(gpus=2), labkit.record() as trace:
        nn.DataParallel(nn.Linear(3, 2).to("cuda:0"))(torch.ones(4, 3))
    return trace


def of_ranks():
    with labkit.ranks(2) as session:
        session.run(lambda: dist.all_reduce(torch.ones(2, device="cuda")))
        return session.trace


WAITS = WaitForGraph(
    (
        Wait(0, "waits", "all_reduce", (1,), "0", 3, "train.py:3"),
        Wait(1, "ended"),
        Wait(2, "failed", "ValueError"),
    )
)
MOMENTS = [(0.1, 1, 1, STEP), (0.2, 9, 9, "forward")]
SHOWN = {
    "Split": lambda: [labkit.split(18, 8), labkit.split(0, 2), labkit.split(1, 64), labkit.split(100, 64)],
    "Piece": lambda: [*map(str, [*labkit.split(9, 4).pieces, *labkit.split(0, 1).pieces])],
    "Batches": lambda: [labkit.batches(100, 30, gpus=8), labkit.batches(100, 30, drop_last=True),
                        labkit.batches(0, 3)],
    "Placement": lambda: [labkit.placement([1, 0]), labkit.placement([0], gpus=2)],
    "Ring": lambda: [ring_all_reduce(4)], "Star": lambda: [star_all_reduce(4)],
    "Footprints": lambda: [data_parallel_memory(8, 2, weights=100), data_parallel_memory(8, 8, weights=1)],
    "Occupancy": lambda: [Occupancy((1, 2), (10, 10))],
    "MemoryTimeline": lambda: [MemoryTimeline(tuple(MemorySample(None, "cuda:0", *one) for one in MOMENTS))],
    "Trace": lambda: [Trace([]), a_call(), of_ranks()],
    "Cut": lambda: [Cut((("one", (7, 2)), ("two", (3,))), 2)],
    "Curves": lambda: [Curves(one=[1.0, 0.5], two=[1.0, 0.25])], "Call": lambda: [*a_call().calls()],
    "HeatMaps": lambda: [labkit.HeatMaps({"W1": [[1.0, 2.0], [3.0, 4.0]]})],
    "Pipeline": lambda: [labkit.pipeline("GPipe", 2, 4)],
    "Plan": lambda: [str(labkit.Plan(dp=8, stage=3, recompute=True))],
    "Plans": lambda: [labkit.plan(MODELS["8B"], gpus=8, batch=64),
                      labkit.plan(MODELS["70B"], gpus=2, batch=2)],
    "WaitForGraph": lambda: [WAITS],
}  # fmt: skip


def told_of_lists_and_labels():
    """Lists, and what findings and errors call inputs and outputs."""
    found = labkit.diagnose(nn.GRU(5, 6, batch_first=True), torch.rand(8, 4, 5), torch.zeros(1, 8, 6), gpus=2)
    with labkit.simulate(gpus=2):
        model = nn.Linear(3, 2).to("cuda:0")
        with pytest.raises(ValueError, match="'mask'") as refused:
            labkit.DataParallel(model)(torch.ones(4, 3), mask=torch.tensor(1.0))
    return [
        repr(labkit.split(10, 8)), format_ranks([0, 2, 3, 5]), format_ranks([0, 1]), format_ranks([0, 1], "–"),
        list_some(["a"] * 6), *(one.where for one in found.findings[:2]), str(refused.value).partition("'mask'")[0],
    ]  # fmt: skip


def test_lists_and_labels_are_in_the_language_in_use():
    labkit.set_language("en")
    assert told_of_lists_and_labels() == [
        "10 rows on 8 GPUs: 2, 2, 2, 2, 2; idle: cuda:5, cuda:6, cuda:7", "ranks 0, 2, 3, 5", "ranks 0, 1",
        "ranks 0–1", "a, a, a, a, a, … (6)", "input 1", "output[1]", "keyword argument ",
    ]  # fmt: skip
    labkit.set_language("zh")
    assert told_of_lists_and_labels() == [
        "10 行分给 8 块 GPU：2、2、2、2、2；空闲：cuda:5、cuda:6、cuda:7", "rank 0、2、3、5", "rank 0、1",
        "rank 0–1", "a、a、a、a、a、……（共 6 个）", "输入 1", "输出[1]", "关键字参数 ",
    ]  # fmt: skip


def test_a_machine_counts_in_chinese():
    labkit.set_language("zh")
    with labkit.simulate(gpus=1) as machine:
        for text in (repr(machine), repr(machine.gpus[0])):
            assert set(re.findall(r"[A-Za-z]+", text)) <= {"GPU", "cuda", "GiB"}, text
    with (
        labkit.simulate(gpus=1, memory=1000),
        pytest.raises(torch.OutOfMemoryError, match="1000 bytes of which"),
    ):
        torch.ones(1000, device="cuda")  # CUDA's own words stay


def classes_that_print():
    """The classes of the rooms whose objects a lesson shows that have words of their own."""
    for room in ("plans", "trace", "cost"):
        for path in (LABKIT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    made = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                    if made & {"__repr__", "__str__"}:
                        yield node.name


def test_every_class_that_prints_is_tried_here():
    assert set(classes_that_print()) <= SHOWN.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_what_a_chinese_reader_prints_is_chinese(name):
    labkit.set_language("zh")
    for shown in SHOWN[name]():
        text = shown if isinstance(shown, str) else repr(shown)
        assert name in ("Curves", "Cut", "HeatMaps", "Plan") or re.search("[\u4e00-\u9fff]", text), (
            text
        )  # names and numbers alone
        words = set(re.findall(r"[A-Za-z]+", re.sub(r"\S+Error", "", text)))
        assert words <= NAMES, text
