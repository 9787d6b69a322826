"""A storage lives on one device: the rarer ways in which storages change hands."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpus")
CUDA1 = torch.device("cuda:1")


def test_data_and_set():
    layer = nn.Linear(2, 2)
    layer.weight.data = torch.ones(2, 2, device=CUDA1)
    assert layer.weight.device == CUDA1
    x = torch.empty(0, device=CUDA1)
    x.set_(torch.ones(4, device=CUDA1))
    assert (x.device, x.tolist()) == (CUDA1, [1, 1, 1, 1])


def test_a_storage_of_another_device_cannot_be_set():
    home, away, host = torch.ones(2, device=CUDA1), torch.ones(3, device="cuda:0"), torch.ones(4)
    for source in (away, away.untyped_storage(), away.storage()):
        with pytest.raises(RuntimeError) as caught:
            home.set_(source)
        assert str(caught.value) == (
            'Attempted to set the storage of a tensor on device "cuda:1" to a storage on different device "cuda:0".  '
            "This is no longer allowed; the devices must match."
        )
    for one, other in ((home, host), (host, home)):
        with pytest.raises(RuntimeError, match="the devices must match"):
            one.set_(source=other)
    torch.set_default_device("cuda:0")  # its mode is below the machine's
    try:
        with pytest.raises(RuntimeError, match="the devices must match"):
            home.set_(away)
    finally:
        torch.set_default_device(None)
    assert (home.tolist(), host.tolist()) == ([1] * 2, [1] * 4)
    assert host.set_(torch.zeros(3).untyped_storage(), 1, (2,), (1,)).tolist() == [0, 0]
    assert home.set_().numel() == 0


def test_a_storage_that_grows_is_counted_anew():
    x = torch.zeros(128, device=CUDA1)
    assert torch.cuda.memory_allocated(1) == 512
    x.resize_(1280)
    assert torch.cuda.memory_allocated(1) == 5120
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated(1) == 0


def test_packed_sequences_on_a_gpu():
    rnn = nn.LSTM(3, 4, batch_first=True).to(CUDA1)
    x, lengths = torch.randn(3, 5, 3, device=CUDA1), torch.tensor([5, 3, 2])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    assert (packed.data.device, packed.batch_sizes.device) == (CUDA1, torch.device("cpu"))
    out, (hidden, _) = rnn(packed)
    padded, found = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    assert (padded.device, hidden.device, found.device) == (CUDA1, CUDA1, torch.device("cpu"))
    assert found.tolist() == [5, 3, 2]
    padded.sum().backward()
    assert rnn.weight_ih_l0.grad.device == CUDA1


def test_a_file_from_a_bigger_machine(tmp_path):
    import labkit

    with labkit.simulate(gpus=4):
        torch.save(torch.ones(2, device="cuda:3"), tmp_path / "x.pt")
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on CUDA device 3 but"):
        torch.load(tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", map_location=lambda storage, place: storage.cuda(1)).device == CUDA1
