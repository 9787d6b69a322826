"""What is restored before a driver measures covers every module of torch that it runs."""

import sys
import types

import pytest
import torch
from torch import nn

import labkit
from labkit_classroom.sandbox.inside import restore


def test_every_module_of_torch_that_runs_is_restored():
    """Operators on several devices run through torch._dynamo, and so could a function put there by an answer."""
    ran = set()

    def note(frame, event, _):
        if event == "call":
            ran.add(frame.f_globals.get("__name__", ""))

    with labkit.simulate(gpus=2):
        model = nn.DataParallel(nn.Linear(4, 3).cuda(), [0, 1])
        sys.setprofile(note)
        try:
            loss = model(torch.ones(4, 4, device="cuda:0")).sum() + torch.ones((), device="cpu")
            loss.backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
            torch.allclose(loss, torch.ones(()))
        finally:
            sys.setprofile(None)
    of_torch = {name for name in ran if name.partition(".")[0] == "torch"}
    assert any(name.startswith("torch._dynamo") for name in of_torch)
    assert {name for name in of_torch if not restore._is_kept(name)} == set()


@pytest.fixture(scope="module")
def snapshot():
    return restore.take_snapshot()


def _forward(self, x):
    return x


def _unchanged():
    return (
        nn.DataParallel, type(nn), nn.Linear.forward, nn.DataParallel.forward.__code__,
        nn.Module.to.__defaults__, nn.DataParallel.__dict__.get("__call__"), vars(torch).get("len"),
        getattr(nn.utils, "clip_grad_norm_", None), sys.modules["torch.nn"],
        nn.modules.module._global_forward_hooks.copy(), nn.DataParallel.__bases__,
    )  # fmt: skip


class _OtherModule(type(sys)):
    pass


class _OtherBase(nn.Module):
    __call__ = _forward


CHANGES = {
    "a class of a module": lambda: setattr(nn, "DataParallel", nn.Linear),
    "a method": lambda: setattr(nn.Linear, "forward", _forward),
    "a method's code": lambda: setattr(nn.DataParallel.forward, "__code__", _forward.__code__),
    "a method's defaults": lambda: setattr(nn.Module.to, "__defaults__", (1,)),
    "a method above an inherited one": lambda: setattr(nn.DataParallel, "__call__", _forward),
    "a name above a builtin": lambda: vars(torch).update(len=lambda value: 0),
    "a class's bases": lambda: setattr(nn.DataParallel, "__bases__", (_OtherBase,)),
    "a deleted function": lambda: delattr(nn.utils, "clip_grad_norm_"),
    "a module's class": lambda: setattr(nn, "__class__", _OtherModule),
    "a module": lambda: sys.modules.update({"torch.nn": nn.functional}),
    "a global hook": lambda: nn.modules.module._global_forward_hooks.update({1: _forward}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_undone(snapshot, change):
    before = _unchanged()
    CHANGES[change]()
    changed = _unchanged()
    try:
        types.FunctionType(restore.restore.__code__, {})(snapshot)
        assert _unchanged() == before != changed
    finally:
        restore.restore(snapshot)
