"""What can only be seen on a real GPU: the engine on it, and CUDA's own messages.

On a computer without one these tests are skipped, and nothing is claimed of them.
"""

import re

import pytest
import torch
from torch import nn

import labkit
from simgpu.simulation import RealGpus

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
    with labkit.use_gpus(have + 1):
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
