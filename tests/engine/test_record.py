"""record(): what a data-parallel call did, by either engine, and nothing left behind."""

import sys

import pytest
import torch
from torch import nn

import labkit


@pytest.mark.parametrize("wrap", [nn.DataParallel, labkit.DataParallel])
def test_a_training_step(wrap):
    with labkit.simulate(gpus=8):
        model = wrap(nn.Linear(5, 2).cuda())
        with labkit.record() as trace:
            model(torch.randn(10, 5)).sum().backward()
    forward, backward = trace.only(direction="forward"), trace.only(direction="backward")
    scattered = list(forward.only(phase="scatter"))
    assert [(e.device, e.source, e.shapes, e.nbytes) for e in scattered] == [
        (f"cuda:{k}", "cpu", ((2, 5),), 40) for k in range(5)
    ]
    copied = list(forward.only(phase="replicate"))
    assert [e.nbytes for e in copied] == [0] + [4 * (10 + 2)] * 4
    applied = list(forward.only(phase="parallel_apply"))
    assert [(e.device, e.shapes, e.outputs, e.name) for e in applied] == [
        (f"cuda:{k}", ((2, 5),), ((2, 2),), "Linear") for k in range(5)
    ]
    assert [e.source for e in forward.only(phase="gather")] == [f"cuda:{k}" for k in range(5)]
    assert {e.phase for e in backward} == {"gather", "parallel_apply", "replicate"}
    assert len(backward.only(phase="parallel_apply")) == 5
    assert [e.source for e in backward.only(phase="replicate")] == [f"cuda:{k}" for k in range(5)]
    assert not list(trace.only(phase="copy"))
    assert all(e.seconds >= 0 for e in trace)
    assert [e.start for e in trace] == sorted(e.start for e in trace)


def test_copies_outside_a_call_are_seen(gpus):
    with labkit.record() as trace:
        torch.ones(3).to("cuda:1").cpu()
    assert [(e.phase, e.source, e.device, e.nbytes) for e in trace] == [
        ("copy", "cpu", "cuda:1", 12),
        ("copy", "cuda:1", "cpu", 12),
    ]


def test_nothing_is_left_wrapped():
    modules = [sys.modules[f"{name}.data_parallel"] for name in ("torch.nn.parallel", "labkit.engine")]
    before = [dict(vars(module)) for module in modules]
    with pytest.raises(ZeroDivisionError), labkit.record(), labkit.record():
        1 / 0  # noqa: B018
    assert [dict(vars(module)) for module in modules] == before
