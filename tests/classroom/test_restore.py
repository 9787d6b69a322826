"""What is restored before a driver measures covers every module of torch that it runs."""

import sys

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
