"""The ten broken models, as the notebook of lesson 09 shows them: each runs on one GPU.

A test holds the cells of the notebook to these classes, letter by letter.
"""

# mypy: ignore-errors
# (People write models in notebooks without annotations.)

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    def __init__(self, words=50, tags=6):
        super().__init__()
        self.embed = nn.Embedding(words, 8, padding_idx=0)
        self.rnn = nn.GRU(8, 10, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(20, tags)

    def forward(self, tokens, lengths):
        embedded = self.embed(tokens)
        lengths = lengths.cpu()
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.tag(states)


class Typist(nn.Module):
    def __init__(self, letters=20):
        super().__init__()
        self.embed = nn.Embedding(letters, 6)
        self.rnn = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.letter = nn.Linear(8, letters)

    def forward(self, typed, state):
        output, state = self.rnn(self.embed(typed), state)
        return self.letter(output), state


class Photos(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.score = nn.Linear(6, 2)

    def forward(self, photos):
        seen = []
        for photo in photos:
            features = self.conv(photo.unsqueeze(0)).relu()
            seen.append(features.mean(dim=(2, 3)))
        return self.score(torch.cat(seen))


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.photo = nn.Linear(12, 8)
        self.caption = nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, photos, captions):
        photos = F.normalize(self.photo(photos), dim=1)
        captions = F.normalize(self.caption(captions), dim=1)
        scores = self.scale.exp() * photos @ captions.T
        own = torch.arange(len(scores), device=scores.device)
        return F.cross_entropy(scores, own)

    def after(self, losses):
        return losses.mean()


class Roads(nn.Module):
    def __init__(self):
        super().__init__()
        self.message = nn.Linear(4, 7)
        self.update = nn.Linear(4 + 7, 3)

    def forward(self, traffic, roads):
        start, end = roads.unbind(dim=1)
        messages = self.message(traffic).relu()
        heard = torch.zeros_like(messages).index_add(1, end, messages[:, start])
        return self.update(torch.cat([traffic, heard], dim=2))


class Clicks(nn.Module):
    def __init__(self, items=40):
        super().__init__()
        self.items = nn.Embedding(items, 8)
        self.taste = nn.Linear(8, 8)

    def forward(self, clicks, counts):
        baskets = clicks.split(counts.tolist())
        users = torch.stack([self.items(basket).mean(dim=0) for basket in baskets])
        return self.taste(users) @ self.items.weight.T


class Words(nn.Module):
    def __init__(self, words=30):
        super().__init__()
        self.embed = nn.Embedding(words, 8)
        self.rnn = nn.GRU(8, 12, batch_first=True)
        self.word = nn.Linear(12, words)

    def forward(self, tokens, targets):
        scores = self.word(self.rnn(self.embed(tokens))[0])
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def after(self, losses):
        return losses.mean()


class Experts(nn.Module):
    def __init__(self, experts=3):
        super().__init__()
        self.choose = nn.Linear(6, experts)
        self.experts = [nn.Linear(6, 4).to("cuda:0") for _ in range(experts)]

    def forward(self, x):
        shares = self.choose(x).softmax(dim=1)
        answers = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (shares.unsqueeze(2) * answers).sum(dim=1)


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.waves = {}

    def forward(self, x):
        steps = x.size(1)
        if steps not in self.waves:
            times = torch.arange(steps, device=x.device).unsqueeze(1)
            angles = times * 0.4 ** torch.arange(4, device=x.device)
            self.waves[steps] = torch.cat([angles.sin(), angles.cos()], dim=1)
        x = x + self.waves[steps]
        return self.attention(x, x, x, need_weights=False)[0]


class Surprise(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(5, 4)
        self.register_buffer("usual", torch.zeros(4))

    def forward(self, x):
        features = self.features(x)
        surprise = (features - self.usual) ** 2
        if self.training:
            mean = features.detach().mean(dim=0)
            self.usual = 0.9 * self.usual + 0.1 * mean
        return surprise
