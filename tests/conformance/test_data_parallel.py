"""torch.nn.DataParallel on simulated GPUs: the ground of PyTorch's own test_data_parallel.py, its broadcast
autograd cases and its scripted-module cases, in our words.

PyTorch's files run on the machine unmodified: ``labkit run --gpus 2 -m pytest test_data_parallel.py``.
"""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import parallel as dp
from torch.nn.parallel._functions import Broadcast, Gather, Scatter

pytestmark = pytest.mark.usefixtures("gpus")


def test_gradients_flow_through_the_collectives_twice():
    x = torch.randn(4, 4, dtype=torch.double, device="cuda:0", requires_grad=True)
    y = torch.randn(4, 4, dtype=torch.double, device="cuda:1", requires_grad=True)
    for function, inputs in (
        (lambda a: Broadcast.apply((0, 1), a)[1], (x,)),
        (lambda a: Scatter.apply((0, 1), None, 0, a)[1], (x,)),
        (lambda a, b: Gather.apply(0, 0, a, b), (x, y)),
    ):
        grads = torch.autograd.grad((function(*inputs) ** 3).sum(), inputs, create_graph=True)
        assert [g.device for g in grads] == [i.device for i in inputs]
        again = torch.autograd.grad(sum((g**2).sum().cpu() for g in grads), inputs)
        for i, g, a in zip(inputs, grads, again, strict=True):
            used = g != 0
            assert torch.allclose(g[used], (3 * i**2)[used])
            assert torch.allclose(a[used], (36 * i**3)[used])


def test_what_needs_no_gradient_gets_none():
    fixed, learned = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:0", requires_grad=True)
    copies = Broadcast.apply((0, 1), fixed, learned, fixed)
    assert [c.requires_grad for c in copies] == [False, True, False] * 2
    with torch.no_grad():
        assert not any(c.requires_grad for c in Broadcast.apply((0, 1), learned))


@pytest.mark.parametrize("home", [0, 1])
def test_buffers_are_kept_on_the_first_gpu(home):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            self.calls.add_(1)
            self.lost = x.shape
            return x * self.weight

    module = Counts().cuda(home)
    wrapped = dp.DataParallel(module, device_ids=[home, 1 - home])
    wrapped(torch.ones(4, 1))
    assert module.calls.tolist() == [1]  # the first replica wrote into the original, the other into its copy
    assert not hasattr(module, "lost")


def test_buffers_that_learn_are_connected():
    class Learns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            return x * self.weight * self.scale

    module = Learns().cuda()
    module.scale.requires_grad_()
    dp.DataParallel(module)(torch.ones(4, 1)).sum().backward()
    assert module.scale.grad.tolist() == [4]


def test_gradients_are_those_of_one_gpu():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).cuda()
    x, target = torch.randn(7, 1, 8, 8), torch.randint(3, (7,), device="cuda:0")
    grads = []
    for call in (module, dp.DataParallel(module)):
        module.zero_grad()
        F.cross_entropy(call(x.cuda()), target).backward()
        grads.append([p.grad.clone() for p in module.parameters()])
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_scripted_modules_are_replicated():
    module = torch.jit.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)).cuda()
    replicas = dp.replicate(module, (0, 1))
    x = torch.ones(2, 2)
    outputs = [replica(x.cuda(k)) for k, replica in enumerate(replicas)]
    assert [o.device.index for o in outputs] == [0, 1]
    assert torch.equal(outputs[0].cpu(), outputs[1].cpu())


def test_scripts_are_loaded_onto_a_gpu():
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2).cuda(1)), file)
    for where in ("cuda:0", torch.device("cuda:1"), "cpu"):
        file.seek(0)
        loaded = torch.jit.load(file, map_location=where)
        home = torch.device(where)
        assert loaded.weight.device == home
        assert loaded(torch.ones(1, 2, device=home)).device == home
