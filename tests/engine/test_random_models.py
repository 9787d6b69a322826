"""Random models, inputs and options: labkit's engine against torch.nn.parallel on one machine, bit for bit.

Every case is run by both. Outputs, gradients and buffers must be equal in value, type, device, shape and strides;
where PyTorch raises, so must labkit, with an error of the same class. What differs on purpose is listed in
:data:`ON_PURPOSE` and is tested in test_differences.py.
"""

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
from labkit.base import tree

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


def cases(count, /, **drawn):
    """``count`` cases, the same in every run; `make test` tries the first quarter of them."""

    def made(test):
        @pytest.mark.parametrize("of", [4, pytest.param(1, marks=pytest.mark.more)])
        def all_of_them(of):
            limited = settings(
                max_examples=count // of,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )
            limited(given(**drawn)(test))()

        all_of_them.__name__ = test.__name__
        return all_of_them

    return made


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
        layers.append(
            nn.BatchNorm2d(channels, momentum=momentum, track_running_stats=norm == "batch", dtype=dtype)
        )
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
        "batch_first": True, "num_layers": draw(st.integers(1, 2)), "bidirectional": draw(st.booleans()),
        "bias": draw(st.booleans()), "dtype": dtype,
    }  # fmt: skip
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


class Alone(nn.Module):
    """One parameter that is added to the input: with a row for each GPU, both have one and the same gradient."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(_numbers(1, 3, dtype=dtype))

    def forward(self, x):
        return x + self.weight


def _alone(draw, rows, dtype):
    return Alone(dtype), _numbers(draw(st.sampled_from([rows, GPUS])), 3, dtype=dtype)


FAMILIES = {
    "alone": _alone, "linears": _linears, "convolutions": _convolutions, "embeddings": _embeddings,
    "recurrent": _recurrent, "lists": _lists, "parametrized": _parametrized, "complex": _complex,
    "shared": _shared, "dropout": _dropout, "attention": _attention, "non_contiguous": _non_contiguous,
}  # fmt: skip


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


def in_order(model):
    """Whether all weights have their memory in the order of their dimensions.

    PyTorch's replicas always do; labkit's keep the original's strides, so a convolution may take another kernel.
    """
    return all(
        t.layout is not torch.strided or t.stride() == torch.empty(t.shape, device="meta").stride()
        for t in (*model.parameters(), *model.buffers())
    )


def same(expected, found, path="output", exact=True):
    """Assert that two values agree bit for bit: structure, types, values, devices, strides.

    exact   False: values up to rounding, and any strides.
    """
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), f"{path}: {found!r}"
        for name in ("dtype", "device", "shape", "layout", "requires_grad", "is_leaf"):
            assert getattr(expected, name) == getattr(found, name), f"{path}.{name}"
        if expected.layout is torch.sparse_coo:
            assert expected.is_coalesced() == found.is_coalesced(), path
            same(expected._indices(), found._indices(), f"{path}._indices()", exact)
            same(expected._values(), found._values(), f"{path}._values()", exact)
            return
        if not exact:
            loose = 1e-2 if expected.dtype in (torch.float16, torch.bfloat16) else 1e-4
            assert torch.allclose(expected.cpu(), found.cpu(), loose, loose, equal_nan=True), path
            return
        assert steps(expected) == steps(found), f"{path}.stride()"
        bits = [t.detach().cpu().resolve_conj().resolve_neg().numpy().tobytes() for t in (expected, found)]
        assert bits[0] == bits[1], path
        return
    assert type(expected) is type(found), f"{path}: {expected!r}, {found!r}"
    if isinstance(expected, dict):
        assert list(expected) == list(found), path
        for key in expected:
            same(expected[key], found[key], f"{path}[{key!r}]", exact)
    elif isinstance(expected, (tuple, list)):
        assert len(expected) == len(found), path
        for at, pair in enumerate(zip(expected, found, strict=True)):
            same(*pair, f"{path}[{at}]", exact)
    else:
        assert expected == found, path


def tensors(value):
    return list(tree.tensors(value).values())


def attempt(function):
    """What ``function`` gives, or the error it raises."""
    try:
        return function(), None
    except Exception as error:
        return None, error


def run(engine, build, mode, autocast=False):
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
        "output": [o.detach() for o in tensors(output)], "structure": output if mode != "train" else None,
        "parameters": {name: parameter.grad for name, parameter in named.items()},
        "inputs": [leaf.grad for leaf in leaves], "buffers": dict(model.named_buffers()),
        "random": torch.rand(2),
    }  # fmt: skip


# PyTorch's errors where labkit differs on purpose, and what it does: raise another class, or give a result (None).
ON_PURPOSE = {
    "has invalid shape": ValueError,  # outputs that do not fit: which output, which replica
    "same number of dimensions": ValueError,
    "Dimension ": (ValueError, IndexError),
    "Could not run 'aten::view'": None,  # one replica and a sparse gradient
    "Inplace update to inference tensor": None,  # labkit's replicas are in inference mode too
    "must have a last dimension of size 2": None,  # PyTorch cuts complex numbers in two if dim is -1
}


def agree(call, exact=True):
    """Assert that ``call(engine)`` does the same with both engines."""
    expected, error = attempt(lambda: call(theirs))
    found, our_error = attempt(lambda: call(ours))
    if error is None:
        if our_error is not None:
            raise our_error
        same(expected, found, "", exact)
        return
    instead = [kind for text, kind in ON_PURPOSE.items() if text in str(error)]
    if instead:
        assert our_error is None if instead[0] is None else isinstance(our_error, instead[0])
    else:
        assert type(error) is type(our_error), f"{error!r}, {our_error!r}"


@cases(
    300, data=st.data(), family=st.sampled_from(sorted(FAMILIES)), rows=st.integers(1, 20), places=places(),
    mode=st.sampled_from(["train", "train", "no_grad", "inference"]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64]),
    autocast=st.sampled_from([False, False, True]), on_gpu=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
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
    agree(lambda engine: run(engine, build, mode, autocast), in_order(model))


# Structures: what goes in and comes out may be nested in any way.

ROWS = st.integers(1, 20)


def trees(leaves):
    """Tuples, lists, dicts and namedtuples of ``leaves``, three deep."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=2).map(OrderedDict),
            st.tuples(inner, inner).map(Pair._make),
        ),
        max_leaves=6,
    )


class Cut:
    """A tensor to be made: its shape but for the rows, its type, and where it starts."""

    def __init__(self, tail, dtype, place):
        self.tail, self.dtype, self.place = tail, dtype, place

    def __repr__(self):
        return f"Cut({self.tail}, {self.dtype}, {self.place!r})"

    def make(self, rows, dim):
        shape = [*self.tail[:dim], rows, *self.tail[dim:]]
        values = torch.randn(shape) * 5
        return values.to(self.dtype).to(self.place)


def cuts(dim=0, places=("cpu", "cuda:0", "cuda:3")):
    return st.builds(
        Cut,
        st.lists(st.integers(1, 3), min_size=dim, max_size=2),
        st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]),
        st.sampled_from(places),
    )


PLAIN = st.sampled_from([None, 3, 1.5, True, "text", "", b"bytes"])


def filled(tree, make):
    """``tree`` with each leaf replaced by ``make(leaf)``."""
    if isinstance(tree, dict):
        return type(tree)((key, filled(value, make)) for key, value in tree.items())
    if isinstance(tree, (tuple, list)):
        items = [filled(item, make) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return make(tree)


def only_tensors(tree):
    """``tree`` with None in place of all that is no tensor: the part of it that can be gathered."""
    return filled(tree, lambda leaf: leaf if isinstance(leaf, torch.Tensor) else None)


class Returns(nn.Module):
    """Gives its inputs back, a weight added to those with a fraction."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.weight = numbers, nn.Parameter(torch.ones(()))

    def forward(self, *inputs, **kwargs):
        def output(leaf):
            if isinstance(leaf, torch.Tensor):
                return leaf + self.weight if leaf.is_floating_point() else leaf
            return None if isinstance(leaf, str) or not self.numbers else leaf

        return filled((*inputs, kwargs), output)


@cases(
    350,
    inputs=st.lists(trees(cuts() | cuts() | PLAIN), max_size=3),
    kwargs=st.dictionaries(st.sampled_from(["x", "mask", "options"]), trees(cuts() | PLAIN), max_size=2),
    rows=ROWS, places=places(), numbers=st.sampled_from([False, False, False, True]),
    mode=st.sampled_from(["train", "no_grad"]),
)  # fmt: skip
def test_structures(inputs, kwargs, rows, places, numbers, mode):
    devices, output = places
    model = Returns(numbers).to(f"cuda:{devices[0]}")
    options = {"device_ids": devices, "output_device": output}
    has_tensors = tensors(
        filled((inputs, kwargs), lambda leaf: torch.ones(1) if isinstance(leaf, Cut) else leaf)
    )
    # With keyword inputs PyTorch is at a loss if there is not work for every GPU: it is given those that have some.
    used = devices[: len(torch.ones(rows).chunk(len(devices)))] if kwargs and has_tensors else devices
    if len(used) < len(devices) and len(used) == 1:
        options["output_device"], model.numbers = devices[0], False  # nothing is gathered from one GPU

    def build(engine):
        def make(leaf):
            return leaf.make(rows, 0) if isinstance(leaf, Cut) else leaf

        model.zero_grad(set_to_none=True)
        chosen = {**options, "device_ids": used if engine is theirs else devices}
        return model, tuple(filled(inputs, make)), filled(kwargs, make), chosen

    agree(lambda engine: run(engine, lambda: build(engine), mode))


@cases(
    400, tree=trees(cuts(1) | PLAIN), rows=st.lists(ROWS, min_size=1, max_size=2),
    dim=st.sampled_from([0, 1, -1]), devices=st.permutations(range(GPUS)), count=st.integers(1, GPUS),
    target=st.sampled_from(["cpu", 0, 5, "cuda:2"]),
)  # fmt: skip
def test_scatter_and_gather(tree, rows, dim, devices, count, target):
    """What is scattered is a view or a copy, as in PyTorch, and gathering gives the whole again."""
    torch.manual_seed(0)
    sizes = iter(rows * 20)
    whole = filled(tree, lambda leaf: leaf.make(next(sizes), dim % 2) if isinstance(leaf, Cut) else leaf)
    devices = devices[:count]

    def call(engine):
        pieces = engine.scatter(whole, devices, dim)
        views = [t.untyped_storage().data_ptr() for t in tensors(whole)]
        shared = [t.untyped_storage().data_ptr() in views for t in tensors(list(pieces))]
        return pieces, shared, engine.gather([only_tensors(piece) for piece in pieces], target, dim)

    agree(call)


# The verbs alone, and DataParallel's other options.


@cases(
    150, data=st.data(), family=st.sampled_from(sorted(FAMILIES)), devices=st.permutations(range(GPUS)),
    count=st.integers(1, GPUS),
    mode=st.sampled_from([(True, False), (True, True), (False, True)]),
)  # fmt: skip
def test_replicate(data, family, devices, count, mode):
    """Replicas have the same tensors under the same names, and send the same gradients back."""
    grad, detach = (
        mode if family != "complex" else (True, False)
    )  # else PyTorch gives views of complex originals
    torch.manual_seed(0)
    model, _ = FAMILIES[family](data.draw, 1, torch.float32)
    model.to(f"cuda:{devices[0]}")

    def call(engine):
        model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(grad):
            replicas = engine.replicate(model, devices[:count], detach)
        found = []
        for replica in replicas:
            for name, module in replica.named_modules():
                attributes = {key: value for key, value in sorted(vars(module).items()) if _compared(value)}
                found.append((name, type(module), attributes, dict(module.named_parameters(recurse=False))))
                found.append((dict(module.named_buffers(recurse=False)), dict(module._former_parameters)))
        weights = [weight for part in found[1::2] for weight in part[1].values() if weight.requires_grad]
        if not weights:
            return found
        loss = sum((weight.abs() ** 3).sum().to("cpu") for weight in weights)
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, learned, create_graph=True, allow_unused=True)
        again = sum((g.abs() ** 2).sum() for g in gradients if g is not None)
        gradients += torch.autograd.grad(again, learned, allow_unused=True)
        return found, [None if g is None else g.detach().contiguous() for g in gradients]

    agree(call, in_order(model))


def _compared(value):
    kinds = (torch.Tensor, bool, int, float, str, type(None))
    return isinstance(value, kinds) or (isinstance(value, list) and all(isinstance(v, kinds) for v in value))


@cases(
    150, rows=ROWS, places=places(), recurrent=st.booleans(),
    mode=st.sampled_from(["train", "no_grad", "inference"]), dim=st.sampled_from([1, -2]),
)  # fmt: skip
def test_other_dimensions(rows, places, recurrent, mode, dim):
    """The batch in dimension 1, as recurrent layers have it; uneven pieces too."""
    devices, output = places
    torch.manual_seed(0)
    model = nn.GRU(3, 2) if recurrent else nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model.to(f"cuda:{devices[0]}")
    x = torch.randn(4, rows, 3)

    def build():
        model.zero_grad(set_to_none=True)
        return model, (x.clone(),), {}, {"device_ids": devices, "output_device": output, "dim": dim}

    agree(lambda engine: run(engine, build, mode))


@cases(
    300,
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=GPUS),
    tails=st.lists(st.lists(st.integers(1, 2), max_size=2), min_size=1, max_size=2),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64]),
    dim=st.sampled_from([0, 0, 1, -1]), target=st.sampled_from(["cpu", -1, 0, 6]), learned=st.booleans(),
    scalars=st.booleans(), channels_last=st.booleans(),
)  # fmt: skip
def test_gather(sizes, tails, dtype, dim, target, learned, scalars, channels_last):
    """Pieces of any size, none too; of shapes that do not fit; scalars."""
    if dtype.is_complex:
        dim = max(dim, 0)  # see ON_PURPOSE

    def call(engine):
        torch.manual_seed(0)
        pieces = []
        for at, size in enumerate(sizes):
            tail = tails[at % len(tails)]
            shape = [] if scalars else [size, *tail] if dim == 0 else [*tail, size]
            piece = torch.randn(shape, dtype=dtype)
            if channels_last and piece.dim() == 3:
                piece = piece.transpose(0, 2)
            pieces.append(piece.to(f"cuda:{at}").requires_grad_(learned))
        whole = engine.gather(pieces, target, dim)
        if not learned:
            return whole
        (whole.abs() ** 2).sum().backward()
        return whole.detach(), [piece.grad for piece in pieces]

    agree(call)


@cases(
    150, rows=ROWS, places=places(), failing=st.sets(st.integers(0, GPUS - 1), max_size=3),
    kind=st.sampled_from([ValueError, KeyError, RuntimeError, StopIteration, ZeroDivisionError, OSError]),
    keyword=st.booleans(),
)  # fmt: skip
def test_the_function(rows, places, failing, kind, keyword):
    """data_parallel(), and what it raises if some replicas fail."""
    devices, output = places

    class Fails(nn.Linear):
        def forward(self, x):
            if x.device.index in failing:
                raise kind("planted")
            return super().forward(x)

    torch.manual_seed(0)
    model = Fails(3, 2).to(f"cuda:{devices[0]}")
    x = torch.randn(rows, 3)

    def call(engine):
        where = {"device_ids": devices, "output_device": output}
        if keyword:
            return engine.data_parallel(model, None, module_kwargs={"x": x}, **where)
        return engine.data_parallel(model, x, **where)

    agree(call)
