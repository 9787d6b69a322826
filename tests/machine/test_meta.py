"""Tensors without values, beside simulated GPUs: torch's own words, and no silent difference."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpus")
NO_DATA = "^Cannot copy out of meta tensor; no data!"


@pytest.mark.parametrize("move", [
    lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.to(torch.ones(1)), lambda x: x.to("cuda:1"),
    lambda x: x.cuda(), lambda x: x.type("torch.DoubleTensor"),
    lambda x: torch.ones(3, device="cuda:1").copy_(x),
])  # fmt: skip
def test_values_that_are_not_there_cannot_be_moved(move):
    with pytest.raises(NotImplementedError, match=NO_DATA):
        move(torch.empty(3, device="meta"))


@pytest.mark.parametrize("move", [
    lambda x: x.to("meta"), lambda x: x.cuda().to("meta"),
    lambda x: x.cuda().to(torch.empty(1, device="meta")), lambda x: x.to("meta").to(torch.float32),
    lambda x: x.to("meta").type(torch.float32), lambda x: x.to("meta").double(),
    lambda x: torch.empty(2, device="meta").copy_(x.cuda()),
])  # fmt: skip
def test_what_moves_to_meta_stays_there(move):
    assert move(torch.ones(2)).device.type == "meta"


def test_modules_that_get_their_values_later():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(NotImplementedError, match=f"{NO_DATA} Please use torch.nn.Module.to_empty"):
        model.to("cuda:1")
    state = {name: torch.ones_like(value, device="cuda:1") for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    assert model(torch.ones(2, 2, device="cuda:1")).device == torch.device("cuda:1")
    empty = nn.Linear(2, 2, device="meta").to_empty(device="cuda:0")
    assert (empty.weight.device, torch.cuda.memory_allocated(0)) == (torch.device("cuda:0"), 1024)


def test_meta_has_the_say_as_in_torch():
    """Its kernel is taken, whatever else there is; on the host torch itself answers."""
    meta = torch.ones(3, 3, device="meta")
    for make in (
        lambda x: meta @ x,
        lambda x: x @ meta,
        lambda x: meta + x,
        lambda x: torch.cat([x, meta]),
        lambda x: nn.functional.conv1d(x[None], meta[None]),
        lambda x: nn.functional.scaled_dot_product_attention(x[None], meta[None], meta[None]),
        lambda x: x[torch.zeros(2, dtype=torch.long, device="meta")],
    ):
        told = []
        for device in ("cpu", "cuda:1"):
            try:
                told.append(str(make(torch.ones(3, 3, device=device)).device))
            except RuntimeError as error:
                told.append(str(error))
        assert told[1] == told[0].replace("cpu", "cuda:1")
