"""Each planted fault is found, and named."""

import json
import random
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import labkit
from labkit.base.language import using
from labkit.base.units import cuda_bytes
from labkit_diagnose.findings import KINDS, FindingKind, gap_text


@pytest.fixture
def kinds_found(monkeypatch):
    """The keys of the kinds of all findings that are made."""
    keys, make = set(), FindingKind.__call__

    def making(kind, where="", /, **facts):
        keys.add(kind.key)
        return make(kind, where, **facts)

    monkeypatch.setattr(FindingKind, "__call__", making)
    return keys


def test_every_kind_is_planted_and_its_advice_applied():
    assert {key for key, *_ in FAULTS.values()} == set(KINDS)


def check(model, *inputs, gpus=4, **options):
    torch.manual_seed(0)
    return labkit.diagnose(model, *inputs, gpus=gpus, **options)


def names(found, severity=None):
    return {f.name for f in found.findings if severity in (None, f.severity)}


class Does(nn.Module):
    """A module with a weight, whose forward is a function."""

    def __init__(self, forward, **attributes):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.does = forward
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *inputs, **kwargs):
        return self.does(self, *inputs, **kwargs)


X = torch.linspace(-1, 1, 80).reshape(16, 5)


class CRNN(nn.Module):
    """Convolution, then an RNN that wants [time, batch, channels]."""

    def __init__(self):
        super().__init__()
        self.cnn, self.rnn, self.out = nn.Conv2d(1, 6, 3, padding=1), nn.LSTM(6 * 4, 8), nn.Linear(8, 11)

    def forward(self, images):
        features = self.cnn(images).flatten(1, 2).permute(2, 0, 1)
        return self.out(self.rnn(features)[0])


def test_the_permute_pitfall():
    found = check(CRNN(), torch.randn(8, 1, 4, 13), gpus=2)
    assert names(found, "error") == {"batch_moved"}
    finding = found.findings[0]
    assert "[13, 8, 11]" in finding.reason
    assert "[26, 4, 11]" in finding.reason
    assert finding.lesson == "06_batch_dim"
    assert finding.where == "output"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layers", [2, 4])
def test_a_hidden_state_is_cut_on_its_layers(batch_first, layers):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 7, layers, batch_first=batch_first)

        def forward(self, x, hidden):
            return self.rnn(x, hidden)[0]

    x = torch.randn(16, 3, 5) if batch_first else torch.randn(3, 16, 5)
    found = check(Model(), x, torch.randn(layers, 16, 7))
    assert next(f for f in found.findings if f.name == "hidden_state_cut").where == "input 1"
    assert ("input_axis" in found) is not batch_first


def test_a_short_keyword():
    found = check(
        Does(lambda self, x, scale: self.linear(x) * scale), X, kwargs={"scale": torch.ones(2, 1)[:1]}
    )
    assert "rows_dropped" in found or "input_cut" in found
    assert any("keyword argument 'scale'" in f.where for f in found.findings)


@pytest.mark.parametrize(("number", "expected"), [
    (lambda y: y.abs().sum().cfloat(), "scalar_output"), (lambda y: (y > 0).sum(), "scalar_output"),
    (lambda y: (y > 0).all(), "batch_lost"), (lambda y: y.argmax(), "batch_lost"),
    (lambda y: y.new_tensor(2.5), "scalar_output"),
], ids=["complex", "count", "whether all are", "place", "constant"])  # fmt: skip
def test_numbers_that_are_no_losses(number, expected):
    found = check(Does(lambda self, x: (self.linear(x), number(self.linear(x)))), X)
    assert [(f.name, f.where) for f in found.findings] == [(expected, "output[1]")]
    reduced = "mean()" if number(X) == 2.5 else "sum()"
    assert expected == "batch_lost" or reduced in found.findings[0].fix


def test_of_eight_pieces_all_sizes_are_said():
    found = check(Does(lambda self, x: self.linear(x).square().mean()), X[:15], gpus=8)
    assert "2, 2, 2, 2, 2, 2, 2, 1 rows" in found.findings[0].reason


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_bias_that_training_has_not_made_large_yet(tokens):
    # Of a model that knows nothing all rows lose alike: the mean of means is right to four digits, and biased.
    def forward(self, x, y):
        logits = self.linear(x).transpose(1, 2)
        return F.cross_entropy(logits * 3e-3, y), logits.detach()

    torch.manual_seed(0)
    assert names(check(Does(forward), WORDS, TARGETS)) == {"biased_loss"}
    equal = torch.where(torch.arange(7) < tokens, TARGETS.clamp(min=0), -100)
    assert names(check(Does(forward), WORDS, equal)) == {"scalar_output"}


def test_a_biased_loss_of_the_users_own():
    # Even pieces, but a loss that weighs the replicas' values wrongly.
    model = Does(lambda self, x: self.linear(x).square().mean())
    assert "biased_loss" in check(model, X[:10], loss=lambda out: out.mean())
    sound = check(nn.Linear(5, 2), X, loss=lambda out: out.square().mean())
    assert sound.ok


def test_an_attribute_is_written_where_other_rows_cannot_tell_it_from_a_cache():
    def forward(self, x):
        if self.picky and len(x) > 1 and bool((x == x[0]).all()):
            raise ValueError("all rows are alike")
        self.last = x.max().item()
        return self.linear(x)

    for picky, batch in ((False, torch.ones(16, 5)), (True, X)):
        (finding,) = check(Does(forward, picky=picky, last=0.0), batch).findings
        assert (finding.name, finding.where) == ("attributes_lost", "last")


def test_a_model_that_was_run_before_can_be_copied():
    def forward(self, x):
        self.last = self.linear(x)
        return self.last

    model = Does(forward)
    kept = model(X)
    assert "attributes_lost" in check(model, X)
    assert model.last is kept


@pytest.mark.parametrize("classes", [3, 16])
def test_classes_are_no_places(classes):
    # Whole numbers below the number of rows, which lie beside the rows: what they name is not another row.
    torch.manual_seed(1)
    labels = torch.randint(classes, (16,))
    apart = lambda y: y[:, None] != y  # noqa: E731
    model = Does(lambda self, x, y: (self.linear(x) @ x.t() * apart(y)).sum(1))
    assert names(check(model, X, labels)) == {"outputs_differ"}
    assert names(check(Does(lambda self, x, y: self.linear(x).softmax(0)), X, labels)) == {"outputs_differ"}


SEEN, COUNTED = [], 0


class Recorder:
    def __init__(self):
        self.seen = {"all": []}

    def hook(self, module, given, out):
        self.seen["all"].append(out)


def hooks():
    """Hooks that write outside the model: each with what it writes to, and how the check-up calls that."""
    features, kept, recorder, steps = [], [], Recorder(), 0
    keep = kept.append

    def collecting(module, given, out):
        features.append(out)

    def counted(module, given, out):
        nonlocal steps
        steps += 1

    def through_another(module, given, out):
        return collecting(module, given, out)

    bound = partial(collecting)

    def near(module, given, out):
        return bound(module, given, out)

    def far(module, given, out):
        return near(module, given, out)

    return {
        "a list around it": (collecting, "features", lambda: features == []),
        "a number around it": (counted, "steps", lambda: steps == 0),
        "a partial function below two others": (far, "features", lambda: features == []),
        "a partial function": (partial(collecting, given=()), "features", lambda: features == []),
        "a method of a list": (lambda *_: keep(1), "list", lambda: kept == []),
        "a global list": (lambda *_: SEEN.append(1), "SEEN", lambda: SEEN == []),
        "an object": (recorder.hook, "Recorder", lambda: recorder.seen == {"all": []}),
    }  # fmt: skip


@pytest.mark.parametrize("kind", hooks())
def test_hooks_that_write_outside_the_model(kind):
    hook, name, untouched = hooks()[kind]
    model = Does(lambda self, x: self.linear(x))
    if kind == "a partial function":
        model.linear.register_forward_hook(lambda module, given, out: hook(module, out=out))
    else:
        register = "register_forward_pre_hook" if kind == "a method of a list" else "register_forward_hook"
        getattr(model.linear, register)(hook)
    found = check(model, X)
    assert [(f.name, f.where) for f in found.findings] == [("shared_state", name)]
    assert untouched()


def test_hooks_that_only_read_are_passed_in_silence():
    scales, settings, seen = [2.0], SimpleNamespace(on=True), []
    model = Does(lambda self, x: self.linear(x))
    model.linear.register_forward_hook(lambda module, given, out: out * scales[0] if settings.on else seen)
    assert not check(model, X).findings


def test_batch_norm_on_tiny_pieces():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    assert names(check(model, X, gpus=4), "warning") == {"batch_norm"}
    assert "fails_in_training" in names(check(model, X[:9], gpus=8), "error")
    assert "2 of 11 rows on the smallest (2 values" in check(model, X[:11], gpus=4).findings[0].reason
    assert check(model, torch.randn(256, 5)).ok
    assert check(model.eval(), X).ok  # in eval mode there is nothing to say


def test_a_model_on_several_devices():
    with labkit.simulate(gpus=4):
        model = nn.Sequential(nn.Linear(5, 4).cuda(), nn.Linear(4, 2))
        found = check(model, X)
        assert names(found, "error") == {"several_devices"}
        assert found.findings[0].where == "cpu, cuda:0"
        assert str(model[0].weight.device) == "cuda:0"
        buffers = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False).cuda())
        assert "several_devices" in check(buffers, X)


def test_lazy_modules():
    found = check(nn.Sequential(nn.LazyLinear(4), nn.ReLU()), X)
    assert names(found, "error") == {"lazy_modules"}
    assert "gradients of 2 parameters" in " ".join(found.compared)  # made, and then compared like any other


def lacking(x):
    raise NotImplementedError("\"some_cpu\" not implemented for 'Long'")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("pieces_only", [False, True])
@pytest.mark.parametrize(("beyond", "text"), [
    (lambda x: torch.cuda.CUDAGraph() and x, "_CUDAGraph"),
    (lambda x: x.__cuda_array_interface__ and x, "labkit"), (lacking, "not implemented for 'Long'"),
], ids=["a CUDA graph", "memory for another library", "a kernel that the CPU lacks"])  # fmt: skip
def test_what_cannot_be_simulated_is_not_the_models_fault(beyond, text, pieces_only, language):
    def forward(self, x):
        return self.linear(x if pieces_only and len(x) == 16 else beyond(x))

    with using(language):
        found = check(Does(forward), X)
    assert names(found) == {"not_simulated"}  # in each language: no verdict is read out of words
    assert text in found.findings[0].reason
    assert "test_planted_faults.py" in found.findings[0].where


@pytest.mark.parametrize("replicas_only", [False, True])
def test_the_users_innermost_line_is_named(replicas_only):
    def helper(x):
        return (
            x if replicas_only and len(x) == 16 else json.loads("no JSON")
        )  # fails in a file of Python's own

    found = check(Does(lambda self, x: self.linear(helper(x))), X)
    assert found.findings[0].where.endswith("in helper")


def test_memory_that_does_not_fit():
    model = nn.Linear(500, 500)
    x = torch.randn(64, 500)
    small = check(model, x, memory="2 MiB")
    assert names(small, "error") == {"memory_too_small"}
    assert check(model, x, memory="1 GiB").ok
    weights = 4 * (500 * 500 + 500)
    assert small.memory[0].weights == weights
    # Weights and gradients at least; the optimizer's two moments come on top.
    assert small.memory[0].peak >= 2 * weights
    assert small.memory[1].peak < small.memory[0].peak
    assert small.memory[1].weights == 0  # its copy lives for one call


def test_parameters_that_are_not_trained_need_no_memory_of_the_optimizer():
    model = nn.Sequential(nn.Linear(500, 500).requires_grad_(False), nn.Linear(500, 10))
    found = check(model, torch.randn(64, 500), memory="1 GiB")
    need = found.memory[0].peak + 2 * 4 * (500 * 10 + 10)
    assert f"needs {cuda_bytes(need)} on cuda:0" in next(f for f in found.findings if "fits" in f.name).reason


def test_memory_that_is_shared_out_evenly_is_not_remarked_on():
    model = nn.Sequential(nn.Linear(5, 20_000), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
    found = check(model, torch.randn(256, 5), gpus=2)
    assert found.memory[1].peak > 2**20
    assert names(found) == set()


def test_a_loss_is_given_the_output_where_the_inputs_are():
    found = check(nn.Linear(5, 2), X, loss=lambda out: F.mse_loss(out, torch.ones(16, 2)))
    assert found.ok, found
    assert "gradients" in " ".join(found.compared)


@dataclass
class Answer:
    logits: torch.Tensor


def test_outputs_that_are_random():
    found = check(Does(lambda self, x: self.linear(x) + random.random() * numpy.random.rand()), X)
    assert names(found) == set()  # Python's generators start from one seed in every replica
    found = check(
        Does(lambda self, x: self.linear(x) + x.new_tensor([random.random() for _ in x])[:, None]), X
    )
    assert names(found) == {"random_outputs"}
    assert not found.ok
    assert len(found.uncompared) == 2  # in eval and in training mode
    assert repr(found).startswith("Does, a batch of 16 rows on 4 GPUs: could not be compared\n")
    assert "What could not be compared:" in repr(found)
    assert "What could not be compared:" in found._repr_html_()
    assert json.loads(found.to_json())["uncompared"] == list(found.uncompared)
    assert not any(line.startswith(("outputs", "gradients")) for line in found.compared)


def test_a_model_that_fails_in_its_own_mode_alone():
    def forward(self, x):
        if self.training:
            raise RuntimeError("only after training")
        return self.linear(x)

    found = check(Does(forward), X)
    assert [finding.name for finding in found.findings] == ["fails_on_one", "fails_in_training"]
    assert "already fails on one GPU with these inputs: RuntimeError: only after" in found.findings[0].reason


# Faults in other clothes, each with what the check-up advises, done to the letter.


class Listed(nn.Module):
    """Its layers are in a plain list, or in a ModuleList."""

    def __init__(self, kind):
        super().__init__()
        self.layers = kind([nn.Linear(5, 5), nn.Linear(5, 5)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Shifted(nn.Module):
    """Its table is in an object of its own, or a buffer."""

    def __init__(self, registered):
        super().__init__()
        self.linear, self.registered = nn.Linear(5, 5), registered
        if registered:
            self.register_buffer("table", torch.ones(5))
        else:
            self.keeps = SimpleNamespace(tables={"shift": torch.ones(5)})

    def forward(self, x):
        return self.linear(x) + (self.table if self.registered else self.keeps.tables["shift"])


class Recurrent(nn.Module):
    """An LSTM whose state is given as [layers, batch, size], or with the batch first."""

    def __init__(self, turned):
        super().__init__()
        self.rnn, self.turned = nn.LSTM(5, 7, 2, batch_first=True), turned

    def forward(self, x, state):
        if self.turned:
            state = tuple(part.transpose(0, 1).contiguous() for part in state)
        return self.rnn(x, state)[0]


class Padded(nn.Module):
    """Recurrent over rows of unequal length, padded to the longest of the piece or to the input's length."""

    def __init__(self, whole):
        super().__init__()
        self.rnn, self.whole = nn.GRU(5, 4, batch_first=True), whole

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        total = x.size(1) if self.whole else None
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=total)[0]


def weighed(self, x):
    return self.linear(x).square().mean(1) + sum(p.square().sum() for p in self.parameters())


def cached(self, x, missing=None):
    if self.cache is None if missing is None else missing:
        self.cache = torch.arange(5.0, device=x.device)
    return self.linear(x + self.cache)


def cached_in_dict(self, x, key):
    if key not in self.tables:
        self.tables[key] = torch.arange(1.0, device=x.device)
    return self.tables[key]


def noisy(self, x):
    return self.linear(x) + torch.randn_like(x)


def contrastive(z):
    return F.cross_entropy(z @ z.t(), torch.arange(len(z), device=z.device))


def quantised(self, x, keep=True):
    z = self.linear(x)
    chosen = torch.cdist(z, self.table.clone()).argmin(1)
    if keep:
        with torch.no_grad():
            for code in range(3):
                self.table[code] = 0.9 * self.table[code] + 0.1 * z[chosen == code].sum(0)
    return z, chosen


def follow(self, weights):
    with torch.no_grad():
        for slow, fast in zip((self.teacher.weight, self.teacher.bias), weights, strict=False):
            slow.mul_(0.9).add_(fast, alpha=0.1)


class OnItsClass(torch.autograd.Function):
    """Keeps what backward needs on the class, which is one for all replicas."""

    @staticmethod
    def forward(ctx, x):
        OnItsClass.kept = x
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (OnItsClass.kept.abs() < 1)


class OnItsContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0].abs() < 1)


def seeded(x, *size):
    """Random numbers that are the same in every call."""
    generator = torch.Generator(device=x.device).manual_seed(3)
    return torch.randn(*size, generator=generator, device=x.device)


def in_training(forward, teacher=False, **buffers):
    """A model that does so in training mode alone, and its input."""

    def make():
        model = Does(lambda self, x: forward(self, x) if self.training else self.linear(x))
        if teacher:
            model.teacher = nn.Linear(5, 5).requires_grad_(False)
        for name, value in buffers.items():
            model.register_buffer(name, value.clone())
        return model, X

    return make


torch.manual_seed(0)  # what is compared must differ every time, or never
STATE = (torch.randn(2, 16, 7), torch.randn(2, 16, 7))
LENGTHS = torch.arange(16) % 6 + 1
WORDS = torch.randn(16, 7, 5)
ADJACENCY = torch.rand(6, 6)
TARGETS = torch.where(torch.arange(7) < LENGTHS[:, None], torch.arange(7) % 5, -100)
GLOBAL = torch.ones(5)
MANY = torch.linspace(-2, 3, 640).reshape(128, 5).square()
IMAGES = [torch.randn(3, 5 + size % 3, 5) for size in range(32)]

EDGES = torch.randint(40, (2, 90), generator=torch.Generator().manual_seed(0))
NODES, GRAPH_OF = torch.randn(40, 5), torch.arange(8).repeat_interleave(5)


def by_edges(self, nodes, edges):
    messages = self.linear(nodes)
    return nodes.index_add(0, edges[1], messages[edges[0]])


def by_adjacency(self, nodes, adjacency):
    return nodes + adjacency @ self.linear(nodes)


def pooled(self, nodes, graph_of):
    return nodes.new_zeros(int(graph_of.max()) + 1, 5).index_add(0, graph_of, self.linear(nodes))


def attended(self, rows, starts):
    """Attention inside sequences that lie one after the other, as kernels for rows of unequal length take them."""
    return torch.cat([self.linear(one).softmax(0) for one in rows.tensor_split(starts[1:-1].cpu())])


def squares(self, x):
    return self.linear(x).square()


def refusing(few, training_only=False):
    def forward(self, x):
        if len(x) <= few and (self.training or not training_only):
            raise ValueError("too few rows")
        return self.linear(x)

    return Does(forward)


def run_once(model):
    model(X)
    return model


def one_way(self, x):
    return self.linear(x) + (0 if x.device.index == 0 else self.linear(x).detach() - self.linear(x))


def hooked(self, x):
    """Has its layer tell what it gives, by a hook that the first call installs."""
    told = []
    if not self.hooked:
        self.linear.register_forward_hook(lambda module, given, out: module.told.append(out))
        self.hooked = True
    self.linear.told = told
    out = self.linear(x)
    (only,) = told
    return out + only


def made_when_needed(self, x):
    if self.head is None:
        self.head = nn.Linear(5, 2, device=x.device)
    return self.head(self.linear(x))


def mixed(draw):
    """In training, adds to each row one that ``draw`` chooses."""

    def forward(self, x):
        return self.linear(x + x[draw(x)] if self.training else x)

    return forward


def seen_once(self, x):
    out = self.linear(x)
    return out + out


def halved(self, x):
    with torch.no_grad():
        self.linear.weight.div_(2)
    return self.linear(x)


class With(dict):
    """Options of a check-up, after the inputs."""


def does(forward, *inputs):
    """How a model with that forward is made, and its inputs."""
    return lambda: (Does(forward), *(inputs or [X]))


PLAIN = does(lambda self, x: self.linear(x))
FAULTS = {
    "parameters in a list": ("not_registered.parameter",
        lambda: (Does(lambda self, x: self.linear(x) * self.scales[0], scales=[nn.Parameter(torch.ones(5))]), X),
        lambda: (Does(lambda self, x: self.linear(x) * self.scales[0], scales=nn.ParameterList([torch.ones(5)])), X),
        "scales[0]"),
    "compiled": ("compiled_model", lambda: (torch.compile(nn.Linear(5, 5)), X), lambda: (nn.Linear(5, 5), X)),
    "a layer made at the first call": ("lazy_modules.made", lambda: (Does(made_when_needed, head=None), X),
        lambda: (Does(made_when_needed, head=nn.Linear(5, 2)), X)),
    "on several devices": ("several_devices", lambda: (nn.Sequential(nn.Linear(5, 4).cuda(), nn.Linear(4, 2)), X),
        lambda: (nn.Sequential(nn.Linear(5, 4).cuda(), nn.Linear(4, 2)).to("cuda:0"), X)),
    "lazy": ("lazy_modules", lambda: (nn.Sequential(nn.LazyLinear(4)), X),
        lambda: (run_once(nn.Sequential(nn.LazyLinear(4))), X)),
    "the last output kept": ("attributes_lost", does(lambda self, x: setattr(self, "last", x) or self.linear(x)),
        does(lambda self, x: (self.linear(x), x))),
    "few rows for a norm": ("batch_norm.few", lambda: (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), X),
        lambda: (nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4)), X)),
    "rows enough for a norm": ("batch_norm", lambda: (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), MANY),
        lambda: (nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)), MANY)),
    "one row for a norm": ("fails_in_training.batch_norm",
        lambda: (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), X[:9], With(gpus=8)),
        lambda: (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), MANY, With(gpus=8))),
    "a mean over the batch": ("batch_lost", does(lambda self, x: self.linear(x).mean(0)),
        does(lambda self, x: self.linear(x), X, With(loss=lambda out: out.mean(0).square().sum())), "[20]"),
    "a loss in forward": ("scalar_output", does(lambda self, x: squares(self, x).mean()),
        does(lambda self, x: squares(self, x).mean(), X, With(loss=lambda loss: loss.mean())), "loss.mean()"),
    "a sum inside, a mean outside": ("biased_loss.numbers",
        does(lambda self, x: squares(self, x).sum(), X, With(loss=lambda loss: loss.mean())),
        does(lambda self, x: squares(self, x).sum(), X, With(loss=lambda loss: loss.sum()))),
    "a dataclass": ("dataclass_output", does(lambda self, x: Answer(self.linear(x))),
        does(lambda self, x: {"logits": self.linear(x)}), "Answer"),
    "noise of the system's": ("random_outputs",
        does(lambda self, x: self.linear(x) + random.SystemRandom().random()),
        does(lambda self, x: self.linear(x) + torch.rand(x.shape, device=x.device))),
    "a gradient cut off": ("gradients_differ", does(one_way), PLAIN),
    "fewer rows of one input": ("rows_dropped", does(lambda self, x, y: self.linear(x), X, X[:2]),
        does(lambda self, x, y: self.linear(x), X, X), "2 replicas run"),
    "more GPUs than pieces": ("idle_gpus", lambda: (nn.Linear(5, 2), X[:10], With(gpus=8)),
        lambda: (nn.Linear(5, 2), X, With(gpus=8)), "cuda:5, cuda:6, cuda:7"),
    "the batch second": ("input_axis",
        lambda: (Does(lambda self, x: self.linear(x).cumsum(0)), torch.randn(12, 8, 5)),
        lambda: (Does(lambda self, x: self.linear(x).cumsum(0)), torch.randn(12, 8, 5), With(dim=1))),
    "a CUDA graph inside": ("not_simulated",
        does(lambda self, x: torch.cuda.CUDAGraph() and torch.sin(self.linear(x))),
        does(lambda self, x: torch.sin(self.linear(x)))),
    "a layer of another width": ("fails_on_one", lambda: (nn.Linear(3, 2), X), lambda: (nn.Linear(5, 2), X)),
    "few rows refused": ("fails_on_many.piece", lambda: (refusing(4), X), lambda: (refusing(3), X), "too few rows",
        "in forward"),
    "hooks set up at the first call": ("fails_on_many.replicas", lambda: (Does(hooked, hooked=False), X),
        does(seen_once)),
    "a weight changed in place": ("replica_weights", does(halved),
        does(lambda self, x: F.linear(x, self.linear.weight / 2, self.linear.bias))),
    "few rows refused in training": ("fails_in_training", lambda: (refusing(4, training_only=True), X),
        lambda: (refusing(3, training_only=True), X), "only in training mode"),
    "a loss of another width": ("loss_fails",
        lambda: (nn.Linear(5, 2), X, With(loss=lambda out: F.mse_loss(out, torch.ones(3, 7)))),
        lambda: (nn.Linear(5, 2), X, With(loss=lambda out: F.mse_loss(out, torch.ones(16, 2))))),
    "a loss of several numbers": ("loss_fails",
        lambda: (nn.Linear(5, 2), X, With(loss=lambda out: out.square().mean(1))),
        lambda: (nn.Linear(5, 2), X, With(loss=lambda out: out.square().mean()))),
    "memory that is enough": ("memory_fits",
        lambda: (nn.Linear(500, 500), torch.randn(64, 500), With(memory="1 GiB")),
        lambda: (nn.Linear(500, 500), torch.randn(64, 500), With(memory="2 GiB"))),
    "memory that is too small": ("memory_too_small", lambda: (nn.Linear(5, 5000), MANY, With(memory="6 MiB")),
        lambda: (nn.Linear(5, 5000), MANY[:32], With(memory="6 MiB"))),
    "large outputs": ("home_memory", lambda: (nn.Linear(5, 20_000), MANY),
        lambda: (Does(lambda self, x: self.wide(x).square().mean(1), wide=nn.Linear(5, 20_000)), MANY)),
    "images and texts compared": ("rows_compared",
        lambda: (Does(lambda self, a, b: (a, self.linear(a) @ b.t())), X, X.flip(0)),
        lambda: (Does(lambda self, a, b: (self.linear(a), b)), X, X.flip(0))),
    "edges of a graph": ("rows_refer", does(by_edges, NODES, EDGES),
        lambda: (Does(by_adjacency), torch.randn(8, 6, 5), torch.rand(8, 6, 6))),
    "sequences one after the other": ("rows_refer",
        lambda: (Does(attended), NODES, torch.tensor([0, 9, 17, 30, 36, 40])),
        lambda: (Does(lambda self, rows: self.linear(rows).softmax(1)), torch.randn(8, 6, 5))),
    "the graph of each node": ("rows_refer", does(pooled, NODES, GRAPH_OF),
        lambda: (Does(lambda self, nodes: self.linear(nodes).sum(1)), torch.randn(8, 5, 5))),
    "modules in a list": ("not_registered.module", lambda: (Listed(list), X), lambda: (Listed(nn.ModuleList), X)),
    "a tensor in an object": ("not_registered.tensor", lambda: (Shifted(False), X), lambda: (Shifted(True), X),
        "register_buffer"),
    "a state of two tensors": ("hidden_state_cut", lambda: (Recurrent(False), WORDS, STATE),
        lambda: (Recurrent(True), WORDS, tuple(part.transpose(0, 1) for part in STATE))),
    "padded to the longest": ("own_length", lambda: (Padded(False), torch.randn(16, 6, 5), LENGTHS),
        lambda: (Padded(True), torch.randn(16, 6, 5), LENGTHS)),
    "an adjacency matrix": ("input_cut",
        lambda: (Does(lambda self, x, edges: edges @ self.linear(x)), torch.randn(16, 6, 5), ADJACENCY),
        lambda: (Buffered(lambda self, x: self.table @ self.linear(x), ADJACENCY), torch.randn(16, 6, 5))),
    "a mean over tokens": ("biased_loss.even_pieces",
        does(lambda self, x, y: F.cross_entropy(self.linear(x).transpose(1, 2), y), WORDS, TARGETS),
        does(lambda self, x, y: self.linear(x), WORDS, TARGETS), "equally many rows"),
    "the device of the first parameter": ("replica_parameters",
        does(lambda self, x: self.linear(x.to(next(self.parameters()).device))),
        does(lambda self, x: self.linear(x.to(self.linear.weight.device)))),
    "a penalty on the weights": ("replica_parameters", does(weighed),
        does(lambda self, x: self.linear(x).square().mean(1))),
    "the GPU in use": ("device_dependent", does(lambda self, x: self.linear(x) + torch.cuda.current_device()),
        PLAIN),
    "a global tensor": ("fixed_device.on_one", does(lambda self, x: self.linear(x) + GLOBAL),
        lambda: (Buffered(lambda self, x: self.linear(x) + self.table, GLOBAL), X)),
    "a device named in forward": ("fixed_device",
        does(lambda self, x: self.linear(x) + torch.ones(5, device="cuda:0")),
        does(lambda self, x: self.linear(x) + torch.ones(5, device=x.device)), "test_planted_faults.py"),
    "wrapped inside": ("nested_parallel", lambda: (nn.Sequential(nn.DataParallel(nn.Linear(5, 5)), nn.ReLU()), X),
        lambda: (nn.Sequential(nn.Linear(5, 5), nn.ReLU()), X)),
    "a batch norm that tracks nothing": ("untracked_norm",
        lambda: (nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5, track_running_stats=False)), MANY),
        lambda: (nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)), MANY)),
    "a cache": ("cache_on_one_gpu", lambda: (Does(cached, cache=None), X),
        lambda: (Buffered(lambda self, x: self.linear(x + self.table), torch.arange(5.0)), X)),
    "a cache that is looked at": ("cache_on_one_gpu", lambda: (Does(cached, cache=None), X),
        lambda: (Does(lambda self, x: cached(self, x, self.cache is None or self.cache.device != x.device), cache=None),
                 X)),
    "a cache in a dict": ("shared_state.device",
        lambda: (Does(lambda self, x: self.linear(x) + cached_in_dict(self, x, 5), tables={}), X),
        lambda: (Does(lambda self, x: self.linear(x) + cached_in_dict(self, x, x.device), tables={}), X)),
    "a counter in an object": ("shared_state",
        lambda: (Does(lambda self, x: (setattr(self.seen, "n", self.seen.n + 1), self.linear(x))[1],
                      seen=SimpleNamespace(n=0)), X), PLAIN),
    "many images": ("list_cut",
        does(lambda self, images: torch.stack([self.linear(i).mean((0, 1)) for i in images]), IMAGES),
        lambda: (Does(lambda self, images: self.linear(images).mean((1, 2))), torch.randn(32, 3, 7, 5)), "input 0"),
    "a sparse batch": ("sparse_input",
        lambda: (Does(lambda self, x: torch.sparse.mm(x, self.linear.weight)), X.to_sparse()),
        does(lambda self, x: torch.sparse.mm(x.to_sparse(), self.linear.weight))),
    "an object with tensors": ("uncut_input",
        lambda: (Does(lambda self, x, batch: self.linear(x) * batch.y), X, SimpleNamespace(y=X)),
        lambda: (Does(lambda self, x, batch: self.linear(x) * batch["y"]), X, {"y": X})),
}  # fmt: skip

FAULTS |= {
    "state on the class of a function": ("shared_state.function",
        does(lambda self, x: OnItsClass.apply(self.linear(x))),
        does(lambda self, x: OnItsContext.apply(self.linear(x)))),
    "quantised for the CPU": ("fails_on_one.of_the_cpu",
        lambda: (torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(5, 4)), {nn.Linear}).eval(), X),
        lambda: (nn.Sequential(nn.Linear(5, 4)).eval(), X)),
    "a dict of forward's parameters": ("fails_on_one.of_names", lambda: (nn.Linear(5, 4), {"input": X}),
        lambda: (Does(lambda self, batch: self.linear(batch["input"])), {"input": X})),
    "a width drawn by torch in training": ("own_length.drawn",
        in_training(lambda self, x: self.linear(x)[:, : int(torch.randint(1, 5, ()))]),
        in_training(lambda self, x: self.linear(x)[:, :4])),
    "numbers for rows by a generator seeded in forward": ("outputs_differ.seeded",
        does(lambda self, x: self.linear(x) + seeded(x, len(x), 5)),
        does(lambda self, x: self.linear(x) + seeded(x, 5))),
    "a temperature as a tensor": ("input_cut.number",
        lambda: (Does(lambda self, x, heat: self.linear(x) / heat), X, torch.tensor(0.5)),
        lambda: (Does(lambda self, x, heat: self.linear(x) / heat), X, 0.5)),
    "a layer that takes its batch second": ("input_axis.batch_first",
        lambda: (Recurs(batch_first=False), torch.randn(8, 4, 5)),
        lambda: (Recurs(batch_first=True), torch.randn(8, 4, 5))),
    "a hidden state of a model that returns its loss": ("hidden_state_cut",
        lambda: (Recurs(lambda out: out.square().mean(), batch_first=True, num_layers=2),
                 torch.randn(8, 4, 5), torch.zeros(2, 8, 5)),
        lambda: (Recurs(batch_first=True, num_layers=2), torch.randn(8, 4, 5))),
    "a cache of keys as an input": ("uncut_input",
        lambda: (Does(lambda self, x, past: list(past)[0][0] + self.linear(x)), X,
                 Keys([(torch.ones(16, 5), torch.ones(16, 5))])),
        lambda: (Does(lambda self, x, past: next(iter(Keys(past)))[0] + self.linear(x)), X,
                 ((torch.ones(16, 5), torch.ones(16, 5)),))),
}  # fmt: skip


class Keys:
    """As transformers' caches: made of the keys and values of each layer, and gives them."""

    def __init__(self, layers=()):
        self.layers = list(layers)

    def __iter__(self):
        return iter(self.layers)


class Recurs(nn.Module):
    def __init__(self, then=lambda out: out, **options):
        super().__init__()
        self.rnn, self.then = nn.GRU(5, 5, **options), then

    def forward(self, x, *hidden):
        return self.then(self.rnn(x, *hidden)[0])


FAULTS |= {
    # Hidden by randomness, which is made alike.
    "a loss of noisy outputs": ("biased_loss", does(lambda self, x: noisy(self, x).square().mean(), X[:10]),
        does(lambda self, x: noisy(self, x).square().mean(1), X[:12])),
    "a noisy output that is turned": ("batch_moved", does(lambda self, x: noisy(self, x).t()), does(noisy)),
    "an attention mask beside noise": ("input_cut",
        lambda: (Does(lambda self, x, mask: mask @ noisy(self, x)), torch.randn(16, 6, 5), ADJACENCY),
        lambda: (Buffered(lambda self, x: self.table @ noisy(self, x), ADJACENCY), torch.randn(16, 6, 5))),
    "rows that are mixed by chance": ("outputs_differ",
        does(lambda self, x: self.linear(x + x[torch.randperm(len(x), device=x.device)])),
        does(lambda self, x: self.linear(x + x[:, torch.randperm(5, device=x.device)]))),
    "an output that is no rows": ("batch_lost.copies",
        does(lambda self, x: (self.linear(x), self.linear.weight * 2)), PLAIN),
    # Only in training mode.
    "a loss in training": ("scalar_output", in_training(lambda self, x: self.linear(x).square().mean()),
        in_training(lambda self, x: self.linear(x).square().mean(1))),
    "a contrastive loss in training": ("biased_loss.even_pieces",
        in_training(lambda self, x: contrastive(self.linear(x))), in_training(lambda self, x: self.linear(x))),
    "a number beside the output in training": ("not_tensors", in_training(lambda self, x: (self.linear(x), 1.5)),
        in_training(lambda self, x: (self.linear(x), x.new_tensor([1.5]).expand(len(x))))),
    # What GPU 0 alone keeps.
    "a moving codebook": ("kept_from_one_gpu.buffers",
        in_training(quantised, table=torch.linspace(-1, 1, 15).reshape(3, 5)),
        in_training(lambda self, x: quantised(self, x, keep=False), table=torch.linspace(-1, 1, 15).reshape(3, 5))),
    "a teacher that follows in forward": ("kept_from_one_gpu.parameters",
        in_training(lambda self, x: follow(self, list(self.linear.parameters())) or self.linear(x), teacher=True),
        in_training(lambda self, x: follow(self, [self.linear.weight, self.linear.bias]) or self.linear(x),
                    teacher=True)),
}  # fmt: skip


class Buffered(Does):
    def __init__(self, forward, table):
        super().__init__(forward)
        self.register_buffer("table", table)


def hook_on_a_tensor(self, x):
    out = self.linear(x)
    if out.requires_grad:
        out.register_hook(lambda gradient: gradient / gradient.norm())
    return out


def seeds_numpy(self, x):
    numpy.random.seed(0)
    return self.linear(x) * torch.from_numpy(numpy.random.rand(*x.shape)).to(x)


def keeping(kind):
    """A model that has kept its own weights in a function or in a list."""
    model = Does(lambda self, x: self.linear(x))
    weight = model.linear.weight
    if kind == "a bound method":
        model.linear.forward = model.linear.forward
    elif kind == "a checkpointed function":
        around = lambda x: model.linear(x).relu()  # noqa: E731
        model.part, model.does = around, lambda self, x: checkpoint(self.part, x, use_reentrant=False)
    elif kind == "a weight in a closure":
        model.times, model.does = (lambda x: x @ weight.t()), lambda self, x: self.times(self.linear(x))
    elif kind == "a hook":
        model.linear.register_forward_hook(lambda module, given, out: out @ weight)
    else:
        model.partners, model.does = [model.linear], lambda self, x: self.partners[0](self.linear(x))
    return model


# Each with where it is said to be.
KEPT = {
    "a bound method": "linear.forward, ", "a checkpointed function": "part, ", "a weight in a closure": "times, ",
    "a hook": "test_planted_faults.py", "a partner": "partners[0]",
}  # fmt: skip


@pytest.mark.parametrize("kind", KEPT)
def test_what_has_kept_a_weight_of_the_model_is_named(kind):
    found = check(keeping(kind), X)
    assert names(found, "error") == {"not_registered" if kind == "a partner" else "fixed_device"}
    assert found.findings[0].where.startswith(KEPT[kind])
    assert "`linear." in found.findings[0].reason


FAULTS |= {
    "a weight that a function has kept": ("fixed_device.kept", lambda: (keeping("a weight in a closure"), X),
        does(lambda self, x: self.linear(x) @ self.linear.weight.t())),
    "a partner in a list": ("not_registered.partner", lambda: (keeping("a partner"), X),
        lambda: (Does(lambda self, x: self.linear(self.linear(x)), partners=nn.ModuleList()), X)),
    "a hook that divides by a norm": ("gradients_differ.of_a_piece", does(hook_on_a_tensor), PLAIN),
    "numpy's seed in forward": ("outputs_differ.seeded", does(seeds_numpy),
        does(lambda self, x: self.linear(x) * torch.rand_like(x))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_advice_mends_the_fault(fault, kinds_found, told):
    key, broken, mended, *facts = FAULTS[fault]
    name = KINDS[key].name

    def drawn():
        torch.manual_seed(0), random.seed(0)
        return checked(*broken())

    with labkit.simulate(gpus=4) if key == "several_devices" else nullcontext():
        found = told(drawn)
        assert names(found) - BESIDE.get(key, {"batch_norm", "home_memory"} - {name}) == {name}, found
        assert key in kinds_found
        (finding, *_) = (finding for finding in found.findings if finding.name == name)
        said = f"{finding.where}: {finding.reason} {finding.fix}"
        assert [fact for fact in facts if fact not in said] == [], said
        found = checked(*mended())
    assert found.ok, found
    assert key == "memory_fits" or name not in names(found)


# What comes along with a fault, and goes with it.
BESIDE = {
    "list_cut": {"rows_dropped"}, "input_cut": {"rows_dropped", "batch_norm"}, "input_axis": {"batch_moved"},
    "input_axis.batch_first": {"batch_moved"}, "rows_dropped": {"input_cut"},
    "fails_on_many.replicas": {"attributes_lost"},
    "fails_in_training.batch_norm": {"batch_norm", "idle_gpus"}, "memory_fits": {"home_memory"},
    "memory_too_small": {"home_memory"},
}  # fmt: skip


def checked(model, *given):
    *given, options = given if isinstance(given[-1], With) else (*given, {})
    return check(model, *given, **options)


@pytest.mark.parametrize("draw", [
    lambda x: torch.rand(len(x), device=x.device).argsort(),
    lambda x: torch.rand(len(x)).to(x.device).sort().indices,
    lambda x: torch.randn(len(x), 1, device=x.device).argsort(0)[:, 0],
    lambda x: x.new_empty(len(x)).uniform_().topk(len(x)).indices,
    lambda x: torch.multinomial(torch.ones(len(x), device=x.device), len(x)),
])  # fmt: skip
def test_rows_mixed_in_the_order_of_random_numbers_are_seen_to_be_mixed(draw):
    found = checked(Does(mixed(draw)), X)
    assert "outputs_differ" in found, found
    assert checked(Does(lambda self, x: self.linear(x + x[:, draw(x[0])])), X).ok


@pytest.mark.parametrize("wrapper", [nn.DataParallel, labkit.DataParallel])
def test_a_wrapper_is_asked_about_as_it_is(wrapper):
    rnn, x = nn.RNN(5, 6), torch.randn(12, 8, 5)
    with labkit.simulate(gpus=4):
        assert "input_axis" in check(wrapper(rnn.cuda()), x, gpus=None)
        found = check(wrapper(rnn.cuda(), dim=1), x, gpus=None)
        assert found.ok, found
        assert found.gpus == 4
        # Eight and what goes with them are asked about as well, and the outputs gathered where it says.
        assert "idle_gpus" in check(wrapper(rnn, dim=1), x[:, :5], gpus=8)
        wide = nn.Linear(5, 4_000).cuda()
        peaks = [check(wrapper(wide, None, k), MANY, gpus=None).memory[k].peak for k in (0, 1)]
        assert peaks[1] - check(wrapper(wide), MANY, gpus=None).memory[1].peak > MANY.size(0) * 4_000 * 3
        for message, arguments in (
            ("dim is 0, but model is wrapped with dim=1", {"dim": 0}),
            ("output_device=3, but gpus=2 has no such GPU", {"gpus": 2}),
        ):
            with pytest.raises(ValueError, match=message):
                labkit.diagnose(wrapper(rnn, output_device=3, dim=1), x, **arguments)
        with pytest.raises(ValueError, match=r"wrapped for device_ids=\[1, 0\]"):
            labkit.diagnose(wrapper(rnn, [1, 0]), x)
    with pytest.raises(ValueError, match="dim is 3, but no input has that dimension"):
        check(rnn, x, dim=3)


def test_what_stays_on_the_cpu_on_purpose_is_left_there():
    def forward(self, x):
        sizes = torch.from_numpy(self.table.numpy() * 2).to(x.device)  # fails where the table is on a GPU
        return self.linear(x) + sizes + self.one

    assert check(Does(forward, table=torch.ones(5), one=torch.tensor(2.0)), X).ok
    forgotten = Does(
        lambda self, x: forward(self, x) + self.shift, table=torch.ones(5), one=1, shift=torch.ones(5)
    )
    assert [(f.name, f.where) for f in check(forgotten, X).findings] == [("not_registered", "shift")]


def test_the_same_finding_is_said_once():
    layers = {f"layer {at}": at for at in range(8)}
    found = check(Does(lambda self, x: {name: self.linear(x).t() for name in layers}), X)
    assert [(f.name, f.where.count("output[")) for f in found.findings] == [("batch_moved", 5)]
    assert "… (8)" in found.findings[0].where
    apart = lambda self, x: {name: self.linear(x).softmax(0) * at for name, at in layers.items() if at}  # noqa: E731
    assert [f.name for f in check(Does(apart), X).findings] == ["outputs_differ"]
    sizes = lambda self, x: [self.linear(x).t(), self.linear(x)[:, :2].t()]  # noqa: E731
    assert [f.where for f in check(Does(sizes), X).findings] == ["output[0]", "output[1]"]


def test_of_an_error_that_came_of_another_the_last_is_named():
    def forward(self, x):
        try:
            return self.linear(x) if len(x) == 16 else {}["first"]
        except KeyError as error:
            raise ValueError("second") from error

    assert ": ValueError: second." in check(Does(forward), X).findings[0].reason


def test_a_part_that_is_wrapped_twice(gpus):
    part = nn.DataParallel(nn.DataParallel(nn.Linear(5, 5).cuda()))
    model = nn.Sequential(part, nn.ReLU())
    assert [(f.name, f.where) for f in check(model, X, gpus=2).findings] == [
        ("nested_parallel", "0, 0.module")
    ]
    assert model[0] is part


def both(first, second):
    """Two faults in one model: all of them named, and nothing else."""
    return lambda self, x: (first(self, x), second(self, x))


def large_beside(self, x):
    y = self.linear(x)
    return (y if x.device.index == 0 else y.detach()).square().mean() + y.square().mean(), 1000 * y


def off_by_little(self, x):
    y = self.linear(x)
    return y + 1e-3 * len(x) * (y - y.detach())


def in_a_step_of_training(self, x):
    return self.norm(self.linear(x)) + (torch.ones(5, device="cuda:0") if self.norm.training else 0)


def turned(self, x):
    return self.linear(x).t()


def apart(self, x, *_):
    return self.linear(x) - self.linear(x).mean(0)


def counts_and_keeps(self, x):
    self.calls, self.last = self.calls + 1, self.linear(x)
    return self.last


def on_cuda_0(self, x):
    return self.linear(x) + torch.ones(5, device="cuda:0")


# What is found of a model, all of it or, after a star, that at least; and where.
FOUND = {
    "images whose channels go their own ways": ("list_cut", "input 0",  # the items are the rows all the same
        lambda: (Does(lambda self, images: torch.stack([image.mean(dim=(1, 2)) for image in images])),
                 [torch.randn(3, 8, 8) for _ in range(6)], With(gpus=2))),
    "images with results for each": ("*list_cut", "input 0",
        lambda: (Does(lambda self, images: [self.linear(image.mean((0, 1))) for image in images]),
                 [torch.randn(3, 6, 5) for _ in range(6)], With(gpus=2))),
    "attributes of two kinds": ("attributes_lost", "calls, last",
        lambda: (Does(counts_and_keeps, calls=0, last=None), X)),
    "what nothing explains": ("outputs_differ", "output['of 16 rows'], output['of 4 rows']",
        lambda: (Does(lambda self, x: {f"of {len(x)} rows": self.linear(x)}), X)),
    "a gradient beside large outputs": ("*gradients_differ", None, lambda: (Does(large_beside), X)),
    "a list with an item for each row": ("uncut_input", "input 1", lambda: (Does(apart), X, ["word"] * 16)),
    "a list with more items than rows": ("outputs_differ", None, lambda: (Does(apart), X, ["word"] * 20)),
    "by so little as sums may be rounded": ("gradients_differ", None, lambda: (Does(off_by_little), X)),
    "random outputs have shapes": ("batch_moved", None,
        lambda: (Does(lambda self, x: (self.linear(x) + x.new_tensor([random.random() for _ in x])[:, None]).t()), X)),
    "a device that only a step of training names": ("*fixed_device", None,
        lambda: (Does(in_a_step_of_training, norm=nn.BatchNorm1d(5)), X)),
    "fails anyway, with a table on the CPU": ("fails_on_one", None,
        lambda: (Does(lambda self, x: torch.cat((self.table, torch.ones(2))).sum() + self.linear(x[:, :4]),
                      table=torch.ones(5)), X)),
    "inside of what is compiled": ("compiled_model batch_moved", None, lambda: (torch.compile(Does(turned)), X)),
    "moved and apart": ("batch_moved outputs_differ", None,
        lambda: (Does(both(turned, lambda m, x: m.linear(x).softmax(0))), X)),
    "moved and parameters": ("batch_moved replica_parameters", None,
        lambda: (Does(lambda m, x: turned(m, x.to(next(m.parameters()).dtype))), X)),
    "a device and no tensor": ("not_tensors fixed_device", None, lambda: (Does(both(on_cuda_0, lambda m, x: 2)), X)),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_it_is_found_and_nothing_else(case):
    wanted, where, make = FOUND[case]
    found = checked(*make())
    assert names(found) >= set(wanted.strip("*").split()), found
    assert names(found) == set(wanted.split()) or wanted[0] == "*", found
    if where:
        assert {one.where for one in found.findings if one.name == wanted.strip("*")} == {where}


def test_where_no_value_is_returned_nothing_was_compared():
    found = check(Does(lambda self, x: self.linear(x)[:0]), X[:3])
    assert names(found) == {"idle_gpus"}
    assert len(found.uncompared) == 1


def test_the_line_that_asks_for_parameters_is_named():
    fails = check(Does(lambda self, x: self.linear(x.to(next(self.parameters()).device))), X).findings[0]
    assert "test_planted_faults.py" in fails.where
    assert "StopIteration" in fails.reason
    assert "test_planted_faults.py" in check(Does(weighed), X).findings[0].where


def test_a_part_that_is_compiled_is_looked_at_inside():
    model = nn.Sequential(nn.Linear(5, 5), torch.compile(nn.Sequential(nn.Linear(5, 5), nn.ReLU())))
    assert [(f.name, f.where) for f in check(model, X).findings] == [("compiled_model", "1")]
    assert check(nn.Sequential(model[0], model[1]._orig_mod), X).ok


def test_what_refuses_some_rows_is_not_given_all_of_them():
    def forward(self, x, y):
        assert len(x) % 2 == 0
        return self.linear(x), 2 * y

    found = check(Does(forward), torch.randn(18, 5), torch.randn(18, 5), gpus=2)
    assert names(found, "error") == {"fails_on_many"}


def test_a_gap_is_a_number_that_people_write():
    assert [gap_text(gap).split()[3] for gap in (0.00123, 0.5, 1.55, 160.0)] == ["0.12", "50", "155", "16000"]


def test_parameters_that_a_library_asks_for_have_its_line(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "modeling_of_theirs.py").write_text(
        "from torch import nn\n\n\nclass Theirs(nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x.to(next(self.parameters()).dtype))\n"
    )
    monkeypatch.syspath_prepend(folder)
    from modeling_of_theirs import Theirs

    found = check(Theirs(5, 5), X)
    assert [(one.name, one.where) for one in found.findings] == [
        ("replica_parameters", "modeling_of_theirs.py, line 6, in forward")
    ]
