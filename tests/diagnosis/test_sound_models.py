"""No false alarms: sound models of many families, for which the check-up must find nothing wrong."""

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labkit


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.body(x))


class Tagger(nn.Module):
    """Recurrent, batch first; its hidden state is made inside."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 12, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(24, 7)

    def forward(self, words):
        return self.head(self.rnn(self.embedding(words))[0])


class Encoder(nn.Module):
    """A transformer with a class token and a padding mask as a keyword."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("position", torch.randn(1, 11, 16))

    def forward(self, x, padding=None):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        if padding is not None:
            padding = torch.cat([padding.new_zeros(len(padding), 1), padding], 1)
        return {"class": self.body(x, src_key_padding_mask=padding)[:, 0], "length": x.new_ones(len(x))}


class Autoencoder(nn.Module):
    """Variational: random in training, the mean in eval mode; several outputs in a tuple."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(20, 8), nn.Linear(4, 20)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance) if self.training else mean
        return self.decode(z), mean, log_variance


class Does(nn.Module):
    """Parts, and a forward that is a function of them; plain tensors become buffers."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs, **kwargs):
        return self.does(self, *inputs, **kwargs)


def decoder(self, words, *, targets=None, scale=1.0, mode="train"):
    """A causal language model with tied weights; the loss of every row."""
    x = self.words(words) + self.places(torch.arange(words.size(1), device=words.device))
    weights = (x @ self.key(x).transpose(1, 2)).masked_fill(
        ~self.causal[: x.size(1), : x.size(1)], -torch.inf
    )
    logits = scale * (x + weights.softmax(-1) @ x) @ self.words.weight.t()
    return logits, F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)


def experts(self, x):
    """Every row goes to its best two experts."""
    weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        rows, places = (chosen == number).nonzero(as_tuple=True)
        out = out.index_add(0, rows, expert(x[rows]) * weights[rows, places, None])
    return out, chosen


def forces(self, x):
    """An energy and its derivative by the input, which forward itself computes."""
    x = x if x.requires_grad else x.clone().requires_grad_()
    energy = self.net(x).square().sum(1)
    return energy, -torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


def half_inside(self, x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = self.net(x)
    return y.float()


def scaled_in_place(self, x):
    return self.linear(x.sub_(self.mean).div_(2))


def takes_keys_out(self, batch):
    return self.linear(batch.pop("x"))


Answer = namedtuple("Answer", "logits hidden extra")


def nested_answer(self, x):
    y = self.linear(x)
    return Answer(y, [y.tanh(), (y > 0, None)], {"best": y.argmax(1), "none": None})


def device_of_a_module(self, x):
    """How libraries of models do it: from the parameters, and in a replica, which has none, from a weight."""
    try:
        device = next(self.parameters()).device
    except StopIteration:
        device = self.linear.weight.device
    return self.linear(x + torch.ones(4, device=device))


def hidden_state_made_inside(self, x):
    hidden = self.start.expand(-1, x.size(0), -1).contiguous()
    return self.rnn(x, hidden)[0]


def _convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 10),
    )  # fmt: skip


class Keywords(dict):
    """Keyword arguments, after the inputs."""


SOUND = {
    "convolutional": lambda: (_convolutional(), torch.randn(32, 3, 8, 8)),
    "recurrent": lambda: (Tagger(), torch.randint(50, (24, 9))),
    "transformer": lambda: (Encoder(), torch.randn(16, 10, 16), Keywords(padding=torch.rand(16, 10) > 0.8)),
    "variational": lambda: (Autoencoder(), torch.randn(30, 20)),
    "old norms": lambda: (nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)),
                                        nn.utils.weight_norm(nn.Linear(8, 2))),
                          torch.randn(16, 8)),
    "decoder": lambda: (Does(decoder, words=nn.Embedding(20, 8), places=nn.Embedding(12, 8),
                             key=nn.Linear(8, 8), causal=torch.ones(12, 12, dtype=torch.bool).tril()),
                        torch.randint(20, (16, 9)),
                        Keywords(targets=torch.randint(20, (16, 9)), scale=0.5, mode="eval")),
    "mixture of experts": lambda: (Does(experts, gate=nn.Linear(6, 4),
                                        experts=nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])),
                                   torch.randn(16, 6)),
    "forces": lambda: (Does(forces, net=nn.Sequential(nn.Linear(4, 8), nn.Tanh())),
                       torch.randn(16, 4).requires_grad_()),
    "autocast": lambda: (Does(half_inside,
                              net=nn.Sequential(
                                  nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 9))),
                         torch.randn(32, 64)),
    "half precision": lambda: (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).bfloat16(),
                               torch.randn(16, 6, 32).bfloat16()),
    "in place": lambda: (Does(scaled_in_place, linear=nn.Linear(4, 3), mean=torch.ones(4)),
                         torch.randn(16, 4)),
    "keys taken out": lambda: (Does(takes_keys_out, linear=nn.Linear(4, 3)), {"x": torch.randn(16, 4)}),
    "nested answer": lambda: (Does(nested_answer, linear=nn.Linear(4, 3)), torch.randn(16, 4)),
    "device of a module": lambda: (Does(device_of_a_module, linear=nn.Linear(4, 3)), torch.randn(16, 4)),
    "own hidden state": lambda: (Does(hidden_state_made_inside, rnn=nn.GRU(4, 6, batch_first=True),
                                      start=nn.Parameter(torch.randn(1, 1, 6))),
                                 torch.randn(16, 16, 4)),
    "scripted": lambda: (nn.Sequential(nn.Linear(4, 8),
                                       torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))),
                         torch.randn(16, 4)),
    "sparse gradients": lambda: (nn.Sequential(
                                     nn.Embedding(30, 8, sparse=True), nn.Flatten(), nn.Linear(40, 2)),
                                 torch.randint(30, (16, 5))),
    "complex": lambda: (Does(lambda self, x: torch.fft.ifft(torch.fft.fft(x) * self.w),
                             w=nn.Parameter(torch.randn(5).cfloat())),
                        torch.randn(16, 5).cfloat()),
}  # fmt: skip


# Each family on uneven pieces; some also on two GPUs and on eight.
RUNS = [
    *((family, 3) for family in SOUND),
    *(pytest.param(family, gpus, marks=pytest.mark.more) for family in list(SOUND)[:8] for gpus in (2, 8)),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("family", "gpus"), RUNS)
def test_nothing_is_wrong_with_a_sound_model(family, gpus, told):
    def drawn():
        torch.manual_seed(0)
        model, *inputs = SOUND[family]()
        kwargs = inputs.pop() if isinstance(inputs[-1], Keywords) else {}
        return labkit.diagnose(model, *inputs, gpus=gpus, kwargs=kwargs)

    found = told(drawn)
    assert found.ok, found
    compared = "\n".join(found.compared)
    for what in "outputs in eval", "outputs in training", "gradients of", "parameters after a forward":
        assert what in compared, found  # nothing was skipped
    assert compared.count("the same on 1 and") == compared.count(" mode:"), found
    assert "memory" not in " ".join(f.name for f in found.findings if f.severity != "note")
    assert len(found.memory) == gpus


@dataclass(init=False)
class Mixed(dict):
    """As outputs are in some libraries: a dict that is a dataclass, too."""

    logits: torch.Tensor | None = None


def gradient(self, x):
    return torch.autograd.grad(self.linear(x).tanh().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("forward", [
    lambda self, x: Mixed(logits=self.linear(x)),
    gradient,  # wants an input that wants a gradient, as the user's does
], ids=["a dict and a dataclass", "gradient of the input"])  # fmt: skip
def test_nothing_is_wrong_with_odd_inputs_and_outputs(forward):
    model = Does(forward, linear=nn.Linear(5, 2))
    found = labkit.diagnose(model, torch.randn(16, 5, requires_grad=True), gpus=2)
    assert not found.findings, found


def anchors(self, x):
    self.cells = [cell.to(x.device) for cell in self.cells]  # made again every time, as torchvision's are
    return self.linear(x) + self.cells[0]


def setting(self, x):
    self.config.problem = "regression"  # as the classifiers of transformers note
    return self.linear(x)


def by_device(self, x):
    if x.device not in self.cache:
        self.cache[x.device] = torch.arange(2.0, device=x.device)
    return self.linear(x) + self.cache[x.device]


def late_buffer(self, x):
    if "bias" not in self._buffers:
        self.register_buffer("bias", torch.zeros(2, device=x.device), persistent=False)
    return self.linear(x) + self.bias


@pytest.mark.parametrize(("forward", "parts"), [
    (anchors, {"cells": [torch.ones(2)]}),
    (setting, {"config": SimpleNamespace(problem=None)}), (by_device, {"cache": {}}), (late_buffer, {}),
])  # fmt: skip
def test_what_every_forward_would_write_alike_is_not_lost(forward, parts):
    model = Does(forward, linear=nn.Linear(5, 2), **parts)
    found = labkit.diagnose(model, torch.randn(16, 5), gpus=2)
    assert not found.findings, found


def switched(self, x):
    """A switch that rounding throws: in single precision the whole batch comes out above zero, a piece below."""
    tiny = 1e-8 if x.dtype is torch.float64 or len(x) == 16 else -1e-8
    y = self.linear(x)
    return y + 0.01 * F.relu(y - y.detach() + tiny)


def test_what_rounding_decides_is_looked_at_in_double_precision():
    model = Does(switched, linear=nn.Linear(5, 2))
    found = labkit.diagnose(model, torch.randn(16, 5), gpus=2)
    assert not found.findings, found
    always = Does(lambda self, x: switched(self, x.float()), linear=nn.Linear(5, 2))
    assert "gradients_differ" in labkit.diagnose(always, torch.randn(16, 5), gpus=2)


def test_a_loss_without_a_gradient_has_none_to_compare():
    model = Does(lambda self, x: self.linear(x).detach(), linear=nn.Linear(5, 2))
    found = labkit.diagnose(model, torch.randn(16, 5), gpus=2, loss=lambda out: out.sum())
    assert not found.findings, found


def test_a_part_that_is_registered_may_be_held_in_a_list_too():
    model = Does(lambda self, x: self.linear(x), linear=nn.Linear(5, 2))
    model.parts = [model.linear]
    assert not labkit.diagnose(model, torch.randn(16, 5), gpus=2).findings


def test_models_without_gradients_are_compared_by_their_outputs():
    for model in (nn.Linear(5, 2).requires_grad_(False), nn.Sequential(nn.ReLU(), nn.Flatten())):
        found = labkit.diagnose(model, torch.randn(16, 5), gpus=3)
        assert found.ok, found
        assert "outputs in training mode" in " ".join(found.compared)
        assert "gradients" not in " ".join(found.compared)


@pytest.mark.parametrize("rows", [8, 31])
def test_one_row_for_each_gpu_and_batches_that_do_not_divide(rows):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    model[0].register_forward_hook(lambda module, given, out: out * 2)
    assert labkit.diagnose(model, torch.randn(rows, 8), gpus=8).ok


def test_a_custom_operator_gives_what_is_on_the_gpu():
    # With a gradient, an autograd Function stands between the machine and the kernel.
    square = torch.library.custom_op("diagnosis_test::square", mutates_args=())(squared)
    square.register_autograd(
        lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    model = Does(lambda self, x: square(self.linear(x)), linear=nn.Linear(5, 2))
    found = labkit.diagnose(model, torch.randn(16, 5), gpus=2)
    assert not found.findings, found
    assert "gradients of 2 parameters" in " ".join(found.compared)


def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


@pytest.mark.parametrize("kept", ["in a closure", "on the module"])
def test_a_cache_by_device_is_sound_wherever_it_is(kept):
    """Also one that is filled again with equal values."""
    cache = {}

    class Rotates(nn.Linear):
        def __init__(self):
            super().__init__(5, 5)
            self.cache = {}

        def forward(self, x):
            held = cache if kept == "in a closure" else self.cache
            held[x.device] = torch.arange(5.0, device=x.device)
            return super().forward(x) * held[x.device]

    assert labkit.diagnose(Rotates(), torch.rand(16, 5), gpus=4).ok
    assert cache == {}
