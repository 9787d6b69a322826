"""Models that were written with their verdicts before any was run, by the rule of the issue; those that add something.

Of the 150 pairs, half of them sound, the others repeat what other tests hold.
"""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labkit

X, TOKENS = torch.linspace(-1, 1, 128).reshape(16, 8), torch.arange(40).reshape(8, 5) % 11


class Does(nn.Module):
    """A module with a linear layer and an embedding, whose forward is a function."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.linear, self.embedding = nn.Linear(8, 4), nn.Embedding(11, 8)
        self.does = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.does(self, *inputs)


class Cache:
    """As the caches of Hugging Face's decoders: made of what each layer has, it gives keys, values and a None."""

    def __init__(self, layers=()):
        self.layers = []
        for keys, values, *_ in layers:
            self.update(keys, values, len(self.layers))

    def update(self, keys, values, layer):
        if layer == len(self.layers):
            self.layers.append((keys[:, :0], values[:, :0]))
        pairs = zip(self.layers[layer], (keys, values), strict=True)
        self.layers[layer] = tuple(torch.cat(pair, 1) for pair in pairs)
        return self.layers[layer]

    def __iter__(self):
        return ((*layer, None) for layer in self.layers)


class State(Cache):
    """A cache that gather cannot make again: it wants to know its size, as Mamba's."""

    def __init__(self, size, layers=()):
        super().__init__(layers)
        self.size = size


def decoder(self, tokens, kind=Cache):
    x, past = self.embedding(tokens), kind()
    for layer in range(2):
        keys, values = past.update(x, x.tanh(), layer)
        x = x + F.scaled_dot_product_attention(x, keys, values)
    return {"logits": x @ self.embedding.weight.t(), "past_key_values": past}


def sparse_experts(self, x):
    choice, out = self.linear(x).argmax(-1), x.new_zeros(len(x), 4)
    for expert in range(4):
        rows = (choice == expert).nonzero().squeeze(1)
        out = out.index_add(0, rows, self.linear(x[rows]) * (expert + 1))
    return out


def with_capacity(self, x):
    """Of the rows that choose an expert, the first three alone get it: it depends on the others of the batch."""
    choice, out = self.linear(x).argmax(-1), x.new_zeros(len(x), 4)
    for expert in range(4):
        rows = (choice == expert).nonzero().squeeze(1)[:3]
        out = out.index_add(0, rows, self.linear(x[rows]))
    return out


def halting(self, x):
    """Each row goes on until it halts by itself, and then stays as it is."""
    done = torch.zeros(len(x), 1, dtype=torch.bool, device=x.device)
    for _ in range(5):
        x = torch.where(done, x, (x + self.linear(x).repeat(1, 2)).tanh())
        done = done | (x[:, :1] > 0.2)
        if done.all():
            break
    return x


def quantised_together(self, x):
    scale = x.abs().max() / 7
    return self.linear((x / scale).round() * scale)


@functools.lru_cache
def positions(count, device):
    return torch.arange(count, device=device) / count


def reading_its_hook(self, x):
    self.seen.clear()
    self.linear(x)
    return self.seen[-1]


def with_hook(write, forward):
    """A model one of whose hooks writes to the model itself, which it names in its closure."""
    model = Does(forward, seen=[], named={})
    model.linear.register_forward_hook(lambda module, inputs, output: write(model, output))
    return model


SOUND = {
    "a decoder with its cache": (lambda: Does(decoder), TOKENS),
    "a scripted model": (lambda: torch.jit.script(nn.Sequential(nn.Linear(8, 4), nn.Dropout())), X),
    "a traced model": (lambda: torch.jit.trace(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), X), X),
    "a cached function": (lambda: Does(lambda self, x: self.linear(x + positions(8, x.device))), X),
    "experts that get what chooses them": (lambda: Does(sparse_experts), X),
    "rows that halt": (lambda: Does(halting), X),
    "boxes that are kept": (lambda: Does(lambda self, x: self.linear(x)[x[:, 0] > -0.5]), X),
    "forces": (
        lambda: Does(lambda self, x: torch.func.vmap(torch.func.jacrev(lambda row: self.linear(row).tanh()))(x)),
        X,
    ),
    "a hook that gives another output": (
        lambda: with_hook(lambda model, output: 2 * output, lambda self, x: self.linear(x)), X
    ),
    "a mask drawn for rows": (
        lambda: Does(lambda self, x: self.linear(x) * torch.empty(len(x), 1, device=x.device).bernoulli_(0.8)), X
    ),
}  # fmt: skip

FAULTY = {
    "a cache that wants its size": ("not_tensors", lambda: Does(lambda *a: decoder(*a, lambda: State(5))), TOKENS),
    "experts with a capacity": ("outputs_differ", lambda: Does(with_capacity), X),
    "a scale of the whole batch": ("outputs_differ", lambda: Does(quantised_together), X),
    "an image, a dict each": (
        "batch_lost", lambda: Does(lambda self, x: [{"boxes": row.view(1, 4)} for row in self.linear(x)]), X
    ),
    "places of hits": ("outputs_differ", lambda: Does(lambda self, x: (self.linear(x) > 0).nonzero()), X),
    "a hook that fills the model's list": (
        "shared_state",
        lambda: with_hook(lambda model, output: model.seen.append(output), lambda self, x: self.linear(x)), X,
    ),
    "a hook whose list forward reads": (
        "shared_state", lambda: with_hook(lambda model, output: model.seen.append(output), reading_its_hook), X
    ),
    "a hook that fills the model's dict": (
        "shared_state",
        lambda: with_hook(lambda model, out: model.named.update(out=out), lambda self, x: self.linear(x)), X,
    ),
    "a size that the loss hides": (
        "input_axis", lambda: Does(lambda self, x, y: (self.linear(x)[:, 0] * y[0]).mean()), X, X.t().contiguous()
    ),
}  # fmt: skip


def check(make, *inputs):
    torch.manual_seed(0)
    return labkit.diagnose(make(), *inputs, gpus=4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("pair", SOUND)
def test_a_sound_model_is_found_sound(pair, in_both_languages):
    found = in_both_languages(lambda: check(*SOUND[pair]))
    assert found.ok, found


@pytest.mark.parametrize("pair", FAULTY)
def test_a_faulty_model_is_found_faulty_for_its_reason(pair, in_both_languages):
    name, *case = FAULTY[pair]
    found = in_both_languages(lambda: check(*case))
    assert {one.name for one in found.findings if one.severity != "note"} == {name}, found
