"""What can only be seen on a real GPU: simulated GPUs that keep their values on it, and CUDA's own messages.

On a computer without one these tests are skipped, and nothing is claimed of them.
"""

import re

import pytest
import torch
from torch import nn

import labkit
from labkit.machine.simulate import RealGpus

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a real GPU, and this computer has none that torch can use"
)


def error_of(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (which one is what is compared)
        call()
    return type(caught.value), str(caught.value)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)
    )


@pytest.mark.parametrize("wrap", [nn.DataParallel, labkit.DataParallel])
def test_eight_gpus_on_one(wrap):
    x = torch.randn(16, 3, 8, 8)
    expected = net().eval()(x)
    with labkit.simulate(gpus=8, backing="cuda:0"):
        model = wrap(net().eval().cuda())
        output = model(x)
        assert str(output.device) == "cuda:0"
        assert torch.allclose(output.cpu(), expected, atol=1e-3)
        output.sum().backward()
        assert all(str(p.grad.device) == "cuda:0" for p in model.parameters())
        assert torch.cuda.memory_allocated(3) == 0
    assert output.device == torch.device("cuda", 0)  # where the values are, once the machine is closed


def test_values_are_kept_on_the_gpu_and_devices_are_told_apart():
    with labkit.simulate(gpus=3, backing="cuda:0") as machine:
        x = torch.ones(1000, device="cuda:2")
        assert str(x.device) == "cuda:2"
        assert machine.memory(2) == 4096
        with pytest.raises(RuntimeError, match=r"found at least two devices, cuda:2 and cuda:1!"):
            x + torch.ones(1000, device="cuda:1")
        with pytest.raises(TypeError, match="can't convert cuda:2 device type tensor to numpy"):
            x.numpy()
        assert x.cpu().sum().item() == 1000
    assert x.is_cuda


def test_random_numbers_are_the_gpus_own():
    with labkit.simulate(gpus=2, backing="cuda:0"):
        torch.manual_seed(3)
        one, two = torch.rand(5, device="cuda:0"), torch.rand(5, device="cuda:1")
        assert torch.equal(one.cpu(), two.cpu())
        dropped = nn.functional.dropout(torch.ones(100, device="cuda:1"))
        assert str(dropped.device) == "cuda:1"
        assert torch.rand(2, device="cuda:1", generator=torch.Generator("cuda:1")).is_cuda


def test_a_training_step_with_amp():
    with labkit.simulate(gpus=4, backing="cuda:0"):
        model = nn.DataParallel(net().cuda())
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.randn(16, 3, 8, 8)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert loss.isfinite()


def test_the_engine_on_the_real_gpu_is_the_bare_step():
    x, bare, wrapped = (
        torch.randn(8, 3, 8, 8, device="cuda"),
        net().cuda(),
        labkit.DataParallel(net().cuda(), [0]),
    )
    for model in (bare, wrapped):
        model(x).sum().backward()
    for one, other in zip(bare.parameters(), wrapped.module.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-4)


def test_use_gpus_takes_real_ones_as_far_as_they_go():
    have = torch.cuda.device_count()
    with labkit.use_gpus(1) as machine:
        assert isinstance(machine, RealGpus)
        assert "1 real GPU" in repr(machine)
        assert machine._repr_svg_().startswith("<svg")
    with labkit.use_gpus(have + 1) as machine:
        assert machine.backing == torch.device("cuda:0")
        assert torch.cuda.device_count() == have + 1


# CUDA's messages with the CPU as the other device: what one GPU can show.
MIXES = {
    "add": lambda a, b: a + b,
    "mm": lambda a, b: a @ b,
    "mm the other way": lambda a, b: b @ a,
    "linear": lambda a, b: nn.functional.linear(a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "embedding": lambda a, b: nn.functional.embedding(b.long(), a),
    "cross entropy": lambda a, b: nn.functional.cross_entropy(a, b[:, 0].long()),
    "batch norm": lambda a, b: nn.functional.batch_norm(a, b[0], b[1].abs(), training=False),
    "layer norm": lambda a, b: nn.functional.layer_norm(a, (3,), b[0]),
    "index": lambda a, b: b[a.long() % 3],
    "index_select": lambda a, b: a.index_select(0, b[0].long()),
    "gather": lambda a, b: a.gather(0, b.long()),
    "scatter": lambda a, b: a.scatter(0, b.long(), a),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1),
    "copy in place": lambda a, b: a.add_(b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "numpy": lambda a, b: a.numpy(),
    "ordinal": lambda a, b: torch.ones(1, device="cuda:99"),
}


@pytest.mark.parametrize("name", MIXES)
def test_the_simulated_message_is_cudas(name):
    def run():
        home = torch.ones(3, 3, device="cuda:0")
        return MIXES[name](home, torch.ones(3, 3))

    real = error_of(run)
    with labkit.simulate(gpus=1):
        assert error_of(run) == real


def test_the_out_of_memory_error_reads_like_cudas():
    def skeleton(text):
        return re.sub(r"[\d.]+ (GiB|MiB|KiB|bytes)", "SIZE", text).partition("Of the allocated")[0]

    total = torch.cuda.get_device_properties(0).total_memory
    kind, text = error_of(lambda: torch.empty(2 * total, dtype=torch.uint8, device="cuda:0"))
    with labkit.simulate(gpus=1, memory=total):
        ours, said = error_of(lambda: torch.empty(2 * total, dtype=torch.uint8, device="cuda:0"))
    assert ours is kind
    assert skeleton(said).split("Process")[0] == skeleton(text).split("Process")[0]
