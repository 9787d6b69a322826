"""torch.nn.DataParallel on simulated GPUs: the ground of PyTorch's own test_data_parallel.py, its broadcast
autograd cases and its scripted-module cases, in our words.

PyTorch's files run on the machine unmodified: ``labkit run --gpus 2 -m pytest test_data_parallel.py``.
"""

import gc
import io
from collections import OrderedDict, namedtuple

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


def test_replicas_have_no_parameters_of_their_own():
    replicas = dp.replicate(nn.Linear(2, 2).cuda(), (0, 1))
    assert [list(r.parameters()) for r in replicas] == [[], []]
    assert [r.weight.device.index for r in replicas] == [0, 1]
    assert replicas[0].weight.grad_fn is not None
    with pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"):
        dp.DataParallel(nn.LazyLinear(4).to(0))(torch.ones(4, 4).to(0))


def test_parameter_lists_and_dicts_and_nested_modules():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.several = nn.ParameterList([torch.ones(1), torch.ones(1) * 2])
            self.named = nn.ParameterDict({"a": torch.ones(1) * 3})
            self.inside = nn.ModuleDict({"l": nn.Sequential(nn.Linear(1, 1, bias=False))})

        def forward(self, x):
            return self.inside["l"](x) * sum(p for p in self.several) * self.named["a"]

    module = Lists().cuda()
    x = torch.randn(6, 1)
    assert torch.allclose(dp.DataParallel(module)(x), module(x.cuda()))


def test_nested_inputs_and_outputs():
    Pair = namedtuple("Pair", "a b")

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(3, 3)

        def forward(self, pair, *, extra):
            assert isinstance(pair, Pair)
            assert extra["name"] == "shared"
            return OrderedDict(sum=self.l(pair.a) + extra["list"][0], pair=Pair(pair.b, (pair.a, None)))

    module = Nested().cuda()
    a, b, c = (torch.randn(5, 3) for _ in range(3))
    found = dp.DataParallel(module)(Pair(a, b), extra={"list": [c], "name": "shared"})
    assert torch.allclose(found["sum"].cpu(), (module.l(a.cuda()).cpu() + c))
    assert torch.equal(found["pair"].a.cpu(), b)
    assert found["pair"].b[1] is None


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows(rows):
    module = nn.Linear(4, 2).cuda()
    x = torch.randn(rows, 4)
    assert torch.allclose(dp.DataParallel(module)(x), module(x.cuda()))


def test_no_inputs_run_on_the_first_gpu():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self):
            return self.weight * 2

    assert dp.DataParallel(Constant().cuda())().device == torch.device("cuda:0")


@pytest.mark.parametrize(
    ("output", "expected"), [(0, "cuda:0"), (torch.device("cuda:1"), "cuda:1"), (-1, "cpu")]
)
@pytest.mark.filterwarnings("ignore:Using -1 to represent CPU")
def test_where_outputs_go(output, expected):
    found = dp.data_parallel(nn.Linear(2, 2).cuda(), torch.ones(4, 2), (0, 1), output)
    assert found.device == torch.device(expected)


def test_failures_tell_the_replica_and_its_device():
    class Fails(nn.Linear):
        def forward(self, x):
            if x.device.index == 1:
                raise KeyError("no such thing")
            return super().forward(x)

    with pytest.raises(KeyError, match="Caught KeyError in replica 1 on device 1") as caught:
        dp.DataParallel(Fails(2, 2).cuda())(torch.ones(4, 2))
    assert "in forward" in str(caught.value)


def test_autocast_and_grad_mode_reach_the_replicas():
    module = nn.Linear(4, 4).cuda()
    with torch.autocast("cuda"):
        assert dp.DataParallel(module)(torch.ones(4, 4)).dtype is torch.float16
    with torch.no_grad():
        assert not dp.DataParallel(module)(torch.ones(4, 4)).requires_grad


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


def test_no_reference_cycles():
    module = dp.DataParallel(nn.Linear(2, 2).cuda())
    module(torch.ones(4, 2)).sum().backward()
    gc.collect()
    before = torch.cuda.memory_allocated(1)
    gc.disable()
    try:
        for _ in range(20):
            module(torch.ones(4, 2)).sum().backward()
        assert torch.cuda.memory_allocated(1) == before
    finally:
        gc.enable()


def test_scripted_modules_are_replicated():
    module = torch.jit.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)).cuda()
    replicas = dp.replicate(module, (0, 1))
    x = torch.ones(2, 2)
    outputs = [replica(x.cuda(k)) for k, replica in enumerate(replicas)]
    assert [o.device.index for o in outputs] == [0, 1]
    assert torch.equal(outputs[0].cpu(), outputs[1].cpu())


def test_pieces_written_by_hand():
    """The four verbs called one by one, as many projects do."""
    module = nn.Linear(3, 3).cuda()
    x = torch.randn(5, 3)
    pieces = dp.scatter(x, [0, 1])
    replicas = dp.replicate(module, [0, 1][: len(pieces)])
    outputs = dp.parallel_apply(replicas, pieces)
    assert torch.allclose(dp.gather(outputs, 0), module(x.cuda()))


def test_scripts_are_loaded_onto_a_gpu():
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2).cuda(1)), file)
    for where in ("cuda:0", torch.device("cuda:1"), "cpu"):
        file.seek(0)
        loaded = torch.jit.load(file, map_location=where)
        home = torch.device(where)
        assert loaded.weight.device == home
        assert loaded(torch.ones(1, 2, device=home)).device == home
