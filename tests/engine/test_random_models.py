"""Random models, inputs and options: labkit's engine against torch.nn.parallel on one machine, bit for bit.

Every case is run by both. Outputs, gradients and buffers must be equal in value, type, device, shape and strides;
where PyTorch raises, so must labkit, with an error of the same class. What differs on purpose is listed in
:data:`ON_PURPOSE` and is tested in test_differences.py.
"""

import warnings
from collections import OrderedDict, namedtuple
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import parallel as theirs
from torch.nn.utils import parametrizations, parametrize

import labkit
from labkit import engine as ours

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # both warn; what of is tested elsewhere
    pytest.mark.usefixtures("eight"),
]

GPUS = 8
Pair = namedtuple("Pair", "a b")


@pytest.fixture
def eight():
    with labkit.simulate(gpus=GPUS):
        yield


def cases(count):
    """The same ``count`` cases in every run."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


# Models. Each builder draws its sizes and gives (model, input, keyword inputs) on the CPU.


def _numbers(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def _linears(draw, rows, dtype):
    sizes = draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    layers = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after, bias=draw(st.booleans()), dtype=dtype), nn.Tanh()]
    return nn.Sequential(*layers), _numbers(rows, sizes[0], dtype=dtype)


def _convolutions(draw, rows, dtype):
    channels = draw(st.integers(1, 3))
    layers = [nn.Conv2d(2, channels, draw(st.sampled_from([1, 3])), padding=1, dtype=dtype)]
    norm = draw(st.sampled_from(["batch", "no statistics", "group", None]))
    if norm == "group":
        layers.append(nn.GroupNorm(1, channels, dtype=dtype))
    elif norm:
        momentum = draw(st.sampled_from([0.1, None]))
        layers.append(nn.BatchNorm2d(channels, momentum=momentum, track_running_stats=norm == "batch", dtype=dtype))
    model, x = nn.Sequential(*layers, nn.ReLU()), _numbers(rows, 2, 4, 3, dtype=dtype)
    if draw(st.booleans()):
        model = model.to(memory_format=torch.channels_last)
    if draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    return model.train(draw(st.booleans())), x


class Words(nn.Module):
    def __init__(self, sparse, padding, bag, dtype):
        super().__init__()
        self.bag = bag
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.words = kind(7, 3, sparse=sparse, padding_idx=padding, dtype=dtype)
        self.out = nn.Linear(3, 2, dtype=dtype)

    def forward(self, x):
        return self.out(self.words(x))


def _embeddings(draw, rows, dtype):
    model = Words(draw(st.booleans()), draw(st.sampled_from([None, 0])), draw(st.booleans()), dtype)
    return model, torch.randint(7, (rows, 4))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = kind(3, 2, **options)

    def forward(self, x, hidden=None):
        return self.rnn(x, hidden)


def _recurrent(draw, rows, dtype):
    options = {
        "batch_first": True,
        "num_layers": draw(st.integers(1, 2)),
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "dtype": dtype,
    }
    kind = draw(st.sampled_from([nn.RNN, nn.GRU, nn.LSTM]))
    return Recurrent(kind, **options), _numbers(rows, 3, 3, dtype=dtype)


class Lists(nn.Module):
    """Parameters in lists and dicts, buffers written in place, a None of each kind."""

    def __init__(self, count, persistent, dtype):
        super().__init__()
        self.several = nn.ParameterList([_numbers(3, dtype=dtype) for _ in range(count)])
        self.named = nn.ParameterDict({"a": _numbers(1, dtype=dtype), "b": _numbers(3, dtype=dtype)})
        self.register_parameter("nothing", None)
        self.register_buffer("no_buffer", None)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=persistent)
        self.register_buffer("mean", torch.zeros(3, dtype=dtype))
        self.alone = nn.Parameter(_numbers((), dtype=dtype))

    def forward(self, x):
        self.calls += 1
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        for weight in self.several:
            x = x * weight
        return x + self.named["a"] * self.alone, x * self.named["b"] + self.mean


def _lists(draw, rows, dtype):
    return Lists(draw(st.integers(0, 3)), draw(st.booleans()), dtype), _numbers(rows, 3, dtype=dtype)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


def _parametrized(draw, rows, dtype):
    layer = nn.Linear(3, 3, dtype=dtype)
    kind = draw(st.sampled_from(["weight", "spectral", "orthogonal", "own", "old weight", "old spectral"]))
    if kind == "weight":
        parametrizations.weight_norm(layer, dim=draw(st.sampled_from([0, 1, None])))
    elif kind == "spectral":
        parametrizations.spectral_norm(layer)
    elif kind == "orthogonal":
        parametrizations.orthogonal(layer, orthogonal_map="cayley")
    elif kind == "own":
        parametrize.register_parametrization(layer, "weight", Symmetric())
    elif kind == "old weight":
        nn.utils.weight_norm(layer)
    else:
        nn.utils.spectral_norm(layer)
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 2, dtype=dtype))
    return model.train(draw(st.booleans())), _numbers(rows, 3, dtype=dtype)


class Waves(nn.Module):
    """Complex parameters and buffers beside real ones."""

    def __init__(self, learned):
        super().__init__()
        self.phase = nn.Parameter(_numbers(3, dtype=torch.complex64), requires_grad=learned)
        self.mix = nn.Linear(3, 2, dtype=torch.complex64)
        self.scale = nn.Parameter(_numbers(2))
        self.register_buffer("shift", _numbers(2, dtype=torch.complex64))

    def forward(self, x):
        y = self.mix(x * self.phase) + self.shift
        return y, y.abs() * self.scale


def _complex(draw, rows, dtype):
    return Waves(draw(st.booleans())), _numbers(rows, 3, dtype=torch.complex64)


class Shared(nn.Module):
    """One layer in three places, a tied weight, a weight that nothing uses."""

    def __init__(self, tied, dtype):
        super().__init__()
        self.one = nn.Linear(3, 3, dtype=dtype)
        self.again = nn.Sequential(self.one, nn.Sequential(self.one))
        self.other = nn.Linear(3, 3, dtype=dtype)
        if tied:
            self.other.weight = self.one.weight
        self.unused = nn.Parameter(_numbers(2, dtype=dtype))
        self.absent = None

    def forward(self, x):
        return self.other(self.again(x).tanh()) + self.one(x)


def _shared(draw, rows, dtype):
    return Shared(draw(st.booleans()), dtype), _numbers(rows, 3, dtype=dtype)


def _dropout(draw, rows, dtype):
    return nn.Sequential(nn.Linear(3, 4, dtype=dtype), nn.Dropout(0.4)), _numbers(rows, 3, dtype=dtype)


def _attention(draw, rows, dtype):
    layer = nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True, dtype=dtype)
    return layer.train(draw(st.booleans())), _numbers(rows, 3, 4, dtype=dtype)


class NonContiguous(nn.Module):
    """Weights, buffers and outputs whose memory is not in the order of their dimensions."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(_numbers(3, 2, dtype=dtype).t())
        self.every_other = nn.Parameter(_numbers(2, 6, dtype=dtype)[:, ::2])
        self.register_buffer("turned", _numbers(2, 3, dtype=dtype).t())

    def forward(self, x):
        y = x @ self.weight.t() + (x * self.every_other.sum(0)) @ self.turned
        return y, y[:, :1].expand(-1, 4), (x[:, :, None] * y[:, None]).transpose(1, 2)


def _non_contiguous(draw, rows, dtype):
    x = _numbers(rows, 6, dtype=dtype)[:, ::2] if draw(st.booleans()) else _numbers(3, rows, dtype=dtype).t()
    return NonContiguous(dtype), x


FAMILIES = {
    "linears": _linears,
    "convolutions": _convolutions,
    "embeddings": _embeddings,
    "recurrent": _recurrent,
    "lists": _lists,
    "parametrized": _parametrized,
    "complex": _complex,
    "shared": _shared,
    "dropout": _dropout,
    "attention": _attention,
    "non_contiguous": _non_contiguous,
}


# How a case is run, and how two runs are compared.


@st.composite
def places(draw):
    """``device_ids`` in any order, and an output device."""
    devices = draw(st.permutations(range(GPUS)))[: draw(st.integers(1, GPUS))]
    output = draw(st.sampled_from([None, -1, *range(GPUS)]))
    return devices, output


def steps(tensor):
    """The strides, but of dimensions of size 1, where a stride means nothing."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def same(expected, found, path="output"):
    """Assert that two values agree bit for bit: structure, types, values, devices, strides."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), f"{path}: {found!r}"
        for name in ("dtype", "device", "shape", "layout", "requires_grad", "is_leaf"):
            assert getattr(expected, name) == getattr(found, name), f"{path}.{name}"
        if expected.layout is torch.sparse_coo:
            assert expected.is_coalesced() == found.is_coalesced(), path
            same(expected._indices(), found._indices(), f"{path}._indices()")
            same(expected._values(), found._values(), f"{path}._values()")
            return
        assert steps(expected) == steps(found), f"{path}.stride()"
        bits = [t.detach().cpu().resolve_conj().resolve_neg().numpy().tobytes() for t in (expected, found)]
        assert bits[0] == bits[1], path
        return
    assert type(expected) is type(found), f"{path}: {expected!r}, {found!r}"
    if isinstance(expected, dict):
        assert list(expected) == list(found), path
        for key in expected:
            same(expected[key], found[key], f"{path}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        assert len(expected) == len(found), path
        for at, pair in enumerate(zip(expected, found, strict=True)):
            same(*pair, f"{path}[{at}]")
    else:
        assert expected == found, path


def tensors(value):
    return [tensor for _, tensor in ours.scatter_gather._tensors(value, "")]


def attempt(function):
    """What ``function`` gives, or the error it raises."""
    try:
        return function(), None
    except Exception as error:
        return None, error


def run(engine, build, mode, autocast):
    """Outputs, gradients and buffers of a training step (or of inference) by ``engine``.DataParallel."""
    torch.manual_seed(0)
    model, inputs, kwargs, options = build()
    leaves = [t for t in tensors((inputs, kwargs)) if t.is_floating_point() or t.is_complex()]
    if mode == "train":
        for leaf in leaves:
            leaf.requires_grad_()
    context = {"train": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}[mode]
    casting = torch.autocast("cuda", dtype=torch.float16) if autocast else nullcontext()
    with context():
        for _ in range(2):  # the second call meets the buffers that the first has written
            with casting:
                output = engine.DataParallel(model, **options)(*inputs, **kwargs)
    if mode == "train":
        learned = [o for o in tensors(output) if o.requires_grad]
        if learned:
            sum((o.abs().float() ** 2).sum().to("cpu") for o in learned).backward()
    named = dict(model.named_parameters())
    return {
        "output": [o.detach() for o in tensors(output)],
        "structure": output if mode != "train" else None,
        "parameters": {name: parameter.grad for name, parameter in named.items()},
        "inputs": [leaf.grad for leaf in leaves],
        "buffers": dict(model.named_buffers()),
        "random": torch.rand(2),
    }


# PyTorch's errors where labkit differs on purpose, and what it does: raise another class, or give a result (None).
ON_PURPOSE = {
    "has invalid shape": ValueError,  # outputs that do not fit: which output, which replica
    "Inplace update to inference tensor": None,  # labkit's replicas are in inference mode too
}


def agree(call):
    """Assert that ``call(engine)`` does the same with both engines."""
    expected, error = attempt(lambda: call(theirs))
    found, our_error = attempt(lambda: call(ours))
    if error is None:
        if our_error is not None:
            raise our_error
        same(expected, found, "")
        return
    instead = [kind for text, kind in ON_PURPOSE.items() if text in str(error)]
    if instead:
        assert our_error is None if instead[0] is None else isinstance(our_error, instead[0])
    else:
        assert type(error) is type(our_error), f"{error!r}, {our_error!r}"


@cases(1200)
@given(
    data=st.data(),
    family=st.sampled_from(sorted(FAMILIES)),
    rows=st.integers(1, 20),
    places=places(),
    mode=st.sampled_from(["train", "train", "no_grad", "inference"]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64]),
    autocast=st.sampled_from([False, False, True]),
    on_gpu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_models(data, family, rows, places, mode, dtype, autocast, on_gpu, seed):
    devices, output = places
    torch.manual_seed(seed)
    model, x = FAMILIES[family](data.draw, rows, dtype)
    for parameter in model.parameters():
        if data.draw(st.sampled_from([False, False, False, True])):
            parameter.requires_grad_(False)  # some of it frozen
    state = model.state_dict()

    def build():
        for name, tensor in model.state_dict().items():
            tensor.copy_(start[name])
        model.zero_grad(set_to_none=True)
        given = x.detach().clone()
        return model, (given.to(f"cuda:{devices[-1]}") if on_gpu else given,), {}, options

    options = {"device_ids": devices, "output_device": output}
    model.to(f"cuda:{devices[0]}")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert set(start) == set(state)
    agree(lambda engine: run(engine, build, mode, autocast))
