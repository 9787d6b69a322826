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
    "a mask drawn for rows": (
        lambda: Does(lambda self, x: self.linear(x) * torch.empty(len(x), 1, device=x.device).bernoulli_(0.8)), X
    ),
}  # fmt: skip

FAULTY = {
    "a cache that wants its size": ("not_tensors", lambda: Does(lambda *a: decoder(*a, lambda: State(5))), TOKENS),
    "an image, a dict each": (
        "batch_lost", lambda: Does(lambda self, x: [{"boxes": row.view(1, 4)} for row in self.linear(x)]), X
    ),
    "a hook whose list forward reads": (
        "shared_state", lambda: with_hook(lambda model, output: model.seen.append(output), reading_its_hook), X
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
