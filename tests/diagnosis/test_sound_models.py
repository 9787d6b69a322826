"""No false alarms: sound models of many families, for which the check-up must find nothing wrong."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

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


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.inside = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1)

    def forward(self, x):
        y = self.down(x)
        return self.up(torch.cat([y, self.inside(y)], 1))


class Graph(nn.Module):
    """Batched dense graphs: node features and adjacency matrices."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, nodes, edges):
        return self.two(torch.relu(edges @ self.one(nodes))).mean(1)


class Siamese(nn.Module):
    """One body for two inputs, given as a dict."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 10), nn.LayerNorm(10), nn.Tanh())

    def forward(self, pair):
        return F.cosine_similarity(self.body(pair["left"]), self.body(pair["right"]))


class Tied(nn.Module):
    """A language model whose output weights are its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True)
        self.out = nn.Linear(12, 30, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, words):
        return self.out(self.rnn(self.embedding(words))[0])


def _convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 10),
    )  # fmt: skip


SOUND = {
    "perceptron": lambda: (
        nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 2)),
        (torch.randn(30, 5),),
        {},
    ),
    "convolutional": lambda: (_convolutional(), (torch.randn(32, 3, 8, 8),), {}),
    "recurrent": lambda: (Tagger(), (torch.randint(50, (24, 9)),), {}),
    "transformer": lambda: (Encoder(), (torch.randn(16, 10, 16),), {"padding": torch.rand(16, 10) > 0.8}),
    "variational": lambda: (Autoencoder(), (torch.randn(30, 20),), {}),
    "unet": lambda: (UNet(), (torch.randn(16, 1, 16, 16),), {}),
    "graph": lambda: (Graph(), (torch.randn(16, 5, 6), torch.rand(16, 5, 5)), {}),
    "siamese": lambda: (Siamese(), ({"left": torch.randn(16, 10), "right": torch.randn(16, 10)},), {}),
    "tied": lambda: (Tied(), (torch.randint(30, (16, 6)),), {}),
    "normed": lambda: (
        nn.Sequential(
            weight_norm(nn.Conv1d(3, 6, 3)),
            nn.ReLU(),
            nn.Flatten(),
            spectral_norm(nn.Linear(36, 4)),
        ),
        (torch.randn(16, 3, 8),),
        {},
    ),
    "old norms": lambda: (
        nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.utils.weight_norm(nn.Linear(8, 2))),
        (torch.randn(16, 8),),
        {},
    ),
    "double precision": lambda: (
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)).double(),
        (torch.randn(16, 4, dtype=torch.float64),),
        {},
    ),
}


@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("family", SOUND)
def test_nothing_is_wrong_with_a_sound_model(family, gpus):
    torch.manual_seed(0)
    model, inputs, kwargs = SOUND[family]()
    found = labkit.diagnose(model, *inputs, gpus=gpus, kwargs=kwargs)
    assert found.ok, found
    assert len(found.compared) == 2, found  # outputs and gradients: nothing was skipped
    assert "memory" not in " ".join(f.name for f in found.findings if f.severity != "note")
    assert len(found.memory) == gpus
