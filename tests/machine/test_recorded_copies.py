"""What a recording tells of a copy between devices: from where, and to where."""

import pytest
import torch

import labkit

COPIES = {
    "to": lambda here: here.to("cuda:1"),
    "copy_": lambda here: torch.empty(3, device="cuda:1").copy_(here),
    "copy_ by name": lambda here: torch.empty(3, device="cuda:1").copy_(other=here),
    "tensor": lambda here: torch.as_tensor(here, device="cuda:1"),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("source", ["cuda:0", "cpu"])
def test_a_copy_is_told_with_its_source_and_its_target(way, source):
    with labkit.simulate(2):
        here = torch.ones(3, device=source)
        with labkit.record() as trace:
            COPIES[way](here)
    assert [(e.source, e.device, e.nbytes) for e in trace.only(phase="copy")] == [(source, "cuda:1", 12)]
