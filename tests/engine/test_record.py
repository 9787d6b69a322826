"""record(): what a data-parallel call did, by either engine, and nothing left behind."""

import gc
import importlib
import threading
from time import perf_counter

import pytest
import torch
from torch import nn

import labkit


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


COPIES = {
    "to": lambda here: here.to("cuda:1"),
    "copy_": lambda here: torch.empty(3, device="cuda:1").copy_(here),
    "copy_ by name": lambda here: torch.empty(3, device="cuda:1").copy_(other=here),
    "tensor": lambda here: torch.as_tensor(here, device="cuda:1"),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("source", ["cuda:0", "cpu"])
def test_a_copy_is_told_with_its_source_and_its_target(way, source, gpus):
    here = torch.ones(3, device=source)
    with labkit.record() as trace:
        COPIES[way](here)
    assert [(e.source, e.device, e.nbytes) for e in trace.only(phase="copy")] == [(source, "cuda:1", 12)]


def test_every_event_knows_its_call_and_its_replica(wrap):
    with labkit.simulate(gpus=3):
        model, x = wrap(nn.Linear(5, 2).cuda()), torch.randn(6, 5, requires_grad=True)
        with labkit.record() as trace:
            first, second = model(x), model(x)
            second.sum().backward()
            first.sum().backward()
    assert {e.call for e in trace} == {0, 1}
    for call in (0, 1):
        kinds = {(e.phase, e.direction, e.replica) for e in trace.only(call=call)}
        phases = ("scatter", "replicate", "parallel_apply", "gather")
        assert kinds == {(p, d, r) for p in phases for d in ("forward", "backward") for r in range(3)}
    began = [e.call for e in trace.only(direction="backward", phase="gather")]
    assert began == [1, 1, 1, 0, 0, 0]
    assert [e.device for e in trace.only(phase="scatter", direction="forward", replica=2)] == ["cuda:2"] * 2
    assert [e.source for e in trace.only(phase="replicate", direction="backward", replica=2)] == [
        "cuda:2"
    ] * 2


class Apart(nn.Module):
    """A replica that copies in forward, and one that is made of another DataParallel."""

    def __init__(self, inner=None):
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.ones(5)), inner

    def forward(self, x):
        if self.inner is None:
            return x * self.weight.to("cpu").to(x.device)
        return self.inner(x * self.weight)


def test_copies_of_a_replica_belong_to_it_and_those_of_a_verb_are_not_told(gpus):
    model = labkit.DataParallel(Apart().cuda())
    with labkit.record() as trace:
        model(torch.ones(4, 5)).sum().backward()
        torch.ones(1).to("cuda:1")
    copies = [(e.call, e.replica, e.source, e.device) for e in trace.only(phase="copy")]
    assert copies == [
        (0, 0, "cuda:0", "cpu"), (0, 0, "cpu", "cuda:0"), (0, 1, "cuda:1", "cpu"), (0, 1, "cpu", "cuda:1"),
        (None, None, "cpu", "cuda:1"),
    ]  # fmt: skip


class OnTwoMore(nn.Module):
    """On the first GPU a data-parallel call over the two others."""

    def __init__(self, wrap):
        super().__init__()
        self.inner = (wrap(nn.Linear(5, 2).cuda(2), device_ids=[2, 3]),)  # in a tuple: it is not replicated

    def forward(self, x):
        return self.inner[0](x).to(x.device)


def test_a_call_inside_a_replica_is_a_call_of_its_own(wrap):
    with labkit.simulate(gpus=4):
        model = wrap(OnTwoMore(wrap), device_ids=[0, 1])
        with labkit.record() as trace:
            model(torch.randn(4, 5)).sum().backward()
    outer, one, other = trace.calls()
    assert [{(e.call, e.parent) for e in call} for call in (outer, one, other)] == [
        {(0, None)}, {(1, 0)}, {(2, 0)}
    ]  # fmt: skip
    assert outer.devices == ("cpu", "cuda:0", "cuda:1", "cuda:2")
    for call in (one, other):
        assert [e.device for e in call.only(phase="parallel_apply", direction="forward")] == [
            "cuda:2",
            "cuda:3",
        ]
        assert len(call.only(phase="replicate", direction="backward")) == 2
        assert not call.only(phase="copy")


def test_calls_of_two_threads_do_not_mix(wrap):
    with labkit.simulate(gpus=2):
        models = [wrap(nn.Linear(5, 2).cuda()), wrap(nn.Linear(3, 2).cuda())]
        meet = threading.Barrier(2, timeout=20)

        def run(model, width):
            scatter = model.scatter
            model.scatter = lambda *given: (scatter(*given), meet.wait())[
                0
            ]  # both, before one of them goes on
            output = model(torch.randn(4, width)).sum()
            meet.wait()
            output.backward()

        with labkit.record() as trace:
            threads = [threading.Thread(target=run, args=pair) for pair in zip(models, (5, 3), strict=True)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(trace.calls()) == 2
    for call in trace.calls():
        widths = {e.shapes[0][-1] for e in call.only(phase="parallel_apply", direction="forward")}
        assert len(widths) == 1
        weights = {e.shapes[0] for e in call.only(phase="replicate")}
        assert weights == {(2, *widths)}
        assert len(call.only(phase="replicate")) == 4  # there and back


@pytest.mark.parametrize("package", [nn.parallel, labkit])
def test_verbs_called_by_hand_are_a_call(package, gpus):
    model = nn.Linear(5, 2).cuda()
    with labkit.record() as trace:
        for _ in range(2):
            replicas = package.replicate(model, [0, 1])
            pieces = package.scatter(torch.randn(4, 5), [0, 1])
            outputs = package.parallel_apply(replicas, pieces, devices=[0, 1])
            package.gather(outputs, 1).sum().backward()
        package.scatter(torch.randn(4, 5), [0, 1])
    one, other, last = trace.calls()
    for call in (one, other):
        assert list(dict.fromkeys((e.phase, e.direction) for e in call)) == [
            ("replicate", "forward"), ("scatter", "forward"), ("parallel_apply", "forward"), ("gather", "forward"),
            ("gather", "backward"), ("parallel_apply", "backward"), ("replicate", "backward"),
        ]  # fmt: skip
        assert [e.device for e in call.only(phase="gather", direction="forward")] == ["cuda:1"] * 2
    assert [e.phase for e in last] == ["scatter"] * 2
    assert all(event.call is not None for event in trace)


def test_verbs_that_a_replica_calls_by_hand_are_a_call_of_their_own():
    class Cuts(nn.Linear):
        def forward(self, x):
            pieces = labkit.scatter(super().forward(x), [2, 3])
            return labkit.gather(pieces, x.device)

    with labkit.simulate(gpus=4):
        model = labkit.DataParallel(Cuts(5, 2).cuda(), device_ids=[0, 1])
        with labkit.record() as trace:
            model(torch.randn(4, 5))
        with labkit.record() as by_hand:
            replicas = labkit.replicate(model.module, [0, 1])
            outputs = labkit.parallel_apply(
                replicas, labkit.scatter(torch.randn(4, 5), [0, 1]), devices=[0, 1]
            )
            labkit.gather(outputs, 0)
    assert {e.phase for e in by_hand.only(call=0)} == {"scatter", "replicate", "parallel_apply", "gather"}
    outer, *inner = trace.calls()
    assert [e.phase for e in outer.only(replica=1)] == ["scatter", "replicate", "parallel_apply", "gather"]
    assert [[(e.parent, e.phase, e.replica) for e in call] for call in inner] == [
        [(0, "scatter", 0), (0, "scatter", 1), (0, "gather", 0), (0, "gather", 1)]
    ] * 2


def test_the_backward_of_a_replica_lasts_until_its_last_gradient(wrap, gpus):
    arrived = []

    class Notes(nn.Linear):
        def forward(self, x):
            x.register_hook(lambda grad: arrived.append(perf_counter()))
            return super().forward(x)

    model, x = wrap(Notes(5, 2).cuda()), torch.randn(4, 5, requires_grad=True)
    with labkit.record() as trace:
        model(x).sum().backward()
    stops = [trace.origin + e.stop for e in trace.only(phase="parallel_apply", direction="backward")]
    assert len(arrived) == len(stops) == 2
    assert min(stops) >= min(arrived)
    assert max(stops) >= max(arrived)


def test_a_second_backward_through_one_graph_is_recorded(wrap, gpus):
    class Spare(nn.Linear):
        """With a weight that nothing uses."""

        def __init__(self):
            super().__init__(5, 2)
            self.spare = nn.Parameter(torch.ones(3))

    model, x = wrap(Spare().cuda()), torch.randn(4, 5, requires_grad=True)
    with labkit.record() as trace:
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        torch.autograd.grad(loss, x, retain_graph=True)  # needs no weight's gradient
        loss.backward()
    found = [(e.call, e.replica) for e in trace.only(phase="parallel_apply", direction="backward")]
    assert sorted(found) == [(0, 0)] * 3 + [(0, 1)] * 3


def test_bytes_are_those_that_move(gpus):
    model = labkit.DataParallel(nn.Linear(5, 2).cuda())
    with labkit.record() as trace:
        model(torch.randn(4, 5, device="cuda:0", requires_grad=True)).sum().backward()
    moved = {(e.phase, e.direction, e.replica): e.nbytes for e in trace if e.phase != "parallel_apply"}
    weights, piece, output = 4 * (10 + 2), 4 * 2 * 5, 4 * 2 * 2
    assert moved == {
        ("scatter", "forward", 0): 0, ("scatter", "forward", 1): piece,
        ("replicate", "forward", 0): 0, ("replicate", "forward", 1): weights,
        ("gather", "forward", 0): 0, ("gather", "forward", 1): output,
        ("gather", "backward", 0): 0, ("gather", "backward", 1): output,
        ("replicate", "backward", 0): 0, ("replicate", "backward", 1): weights,
        ("scatter", "backward", 0): 0, ("scatter", "backward", 1): piece,
    }  # fmt: skip


def test_a_recording_inside_a_recording(gpus):
    model = nn.DataParallel(nn.Linear(5, 2).cuda())
    with labkit.record() as outer:
        model(torch.randn(4, 5))
        with labkit.record() as inner:
            model(torch.randn(4, 5))
        model(torch.randn(4, 5)).sum().backward()
    assert [len(inner), {e.call for e in inner}] == [8, {0}]
    assert [len(call) for call in outer.calls()] == [8, 8, 14]
    model(torch.randn(4, 5))
    assert len(outer) == 30


def test_hints_are_given_while_recording_too(gpus):
    class Left(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.shift = torch.ones(2, device="cuda:0")

        def forward(self, x):
            return super().forward(x) + self.shift

    model = labkit.DataParallel(Left().cuda())
    with labkit.record(), pytest.raises(RuntimeError, match="'shift' of Left is a plain tensor on cuda:0"):
        model(torch.ones(4, 2))


def test_a_replica_without_tensors_is_where_it_was_sent(gpus):
    class Counts(nn.Module):
        def forward(self, times):
            return torch.ones(times, device="cuda")

    calls = importlib.import_module("labkit.engine.data_parallel")  # the package's name is the function's
    with labkit.record() as trace:
        calls.parallel_apply([Counts(), Counts()], [(1,), (2,)], devices=[1, 0])
    assert [event.device for event in trace.only(phase="parallel_apply")] == ["cuda:1", "cuda:0"]


def test_recording_keeps_no_replica_alive(wrap, gpus):
    """What a recording keeps of a replica must not be a circle: memory would grow until Python collects it."""
    model = wrap(nn.Linear(64, 64).cuda())
    gc.collect()
    gc.disable()
    try:
        with labkit.record():
            for _ in range(2):
                model(torch.ones(4, 64)).sum().backward()
            assert torch.cuda.memory_allocated(1) == 0
    finally:
        gc.enable()
