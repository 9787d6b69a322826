"""Repairs of the ten broken models as learners write them: other right ones, and wrong ones with the hint they get."""

import copy
import json
import re
from random import Random

import pytest
import torch
import torch.nn.functional as F
from labkit.content.broken import models, repaired
from labkit.content.broken.judging import judge
from labkit.content.repairs import problems, score
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from labkit.base.language import using
from labkit.course import Progress, glossary, hint, progress, repair


def tagger(packed_length, cpu=True):
    """A tagger that pads to ``packed_length(tokens, lengths)``."""

    class Tagger(models.Tagger):
        def forward(self, tokens, lengths):
            packed = pack_padded_sequence(
                self.embed(tokens), lengths.cpu() if cpu else lengths, batch_first=True, enforce_sorted=False
            )
            length = packed_length(tokens, lengths)
            return self.tag(
                pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=length)[0]
            )

    return Tagger


class TaggerByHand(models.Tagger):
    """Pads what comes out."""

    def forward(self, tokens, lengths):
        tags = super().forward(tokens, lengths)
        # What the padding gets is what the layer makes of nothing: its bias.
        missing = tokens.size(1) - tags.size(1)
        return torch.cat([tags, self.tag.bias.expand(len(tags), missing, -1)], dim=1)


class TaggerCut(models.Tagger):
    def forward(self, tokens, lengths):
        return super().forward(tokens, lengths)[:, : int(lengths.min())][:, :1]


class TaggerUnpacked(models.Tagger):
    def forward(self, tokens, lengths):
        return self.tag(self.rnn(self.embed(tokens))[0])


def turned(state):
    return tuple(part.transpose(0, 1).contiguous() for part in state)


class TypistInside(models.Typist):
    """Turned in forward only: it is cut before."""

    def forward(self, typed, state):
        scores, state = super().forward(typed, turned(state))
        return scores, turned(state)


class TypistIn(models.Typist):
    """What goes in is mended, what comes out is not."""

    def before(self, typed, state):
        return typed, turned(state)

    def forward(self, typed, state):
        return super().forward(typed, turned(state))


class TypistFlat(TypistIn):
    """All is turned back, but the two parts of the state are no pair any more."""

    def after(self, joined):
        return joined[0], *turned(joined[1])

    def forward(self, typed, state):
        scores, state = super().forward(typed, state)
        return scores, turned(state)


class TypistOut(TypistIn):
    def forward(self, typed, state):
        scores, state = super().forward(typed, state)
        return scores, turned(state)


class TypistForgets(TypistOut):
    def forward(self, typed, state):
        return super().forward(typed, tuple(torch.zeros_like(part) for part in state))

    def after(self, output):
        return output[0], turned(output[1])


class TypistReshaped(models.Typist):
    def before(self, typed, state):
        return typed, tuple(part.reshape(len(typed), 2, 8) for part in state)

    def forward(self, typed, state):
        scores, state = super().forward(typed, tuple(part.reshape(2, len(typed), 8) for part in state))
        return scores, turned(state)

    def after(self, output):
        return output[0], turned(output[1])


class TypistStacked(models.Typist):
    """Another right one: the state travels as one tensor of [batch, 4, hidden units]."""

    def before(self, typed, state):
        return typed, torch.cat(state).transpose(0, 1)

    def forward(self, typed, state):
        scores, state = super().forward(typed, tuple(state.transpose(0, 1).contiguous().chunk(2)))
        return scores, torch.cat(state).transpose(0, 1)

    def after(self, output):
        return output[0], output[1].transpose(0, 1).chunk(2)


class PhotosStacked(models.Photos):
    def before(self, photos):
        return torch.stack(photos)


class PhotosPadded(models.Photos):
    def before(self, photos):
        return repaired.Photos.before(self, photos)[0]


class PhotosScaled(models.Photos):
    def before(self, photos):
        return torch.stack([F.interpolate(photo[None], (8, 8))[0] for photo in photos])


class PhotosGray(models.Photos):
    """Does away with the error."""

    def forward(self, photos):
        return super().forward([photo[:1].expand(3, -1, -1) for photo in photos])


class PhotosList(models.Photos):
    def before(self, photos):
        return ([photo.permute(1, 2, 0) for photo in photos],)

    def forward(self, photos):
        return super().forward([photo.permute(2, 0, 1) for photo in photos])


class PhotosMasked(models.Photos):
    """Another right one: a mask comes along."""

    def before(self, photos):
        padded, sizes = repaired.Photos.before(self, photos)
        mask = torch.zeros(len(photos), 1, *padded.shape[2:], device=padded.device)
        for row, (height, width) in zip(mask, sizes.tolist(), strict=True):
            row[:, :height, :width] = 1
        return padded, mask

    def forward(self, padded, mask):
        features = self.conv(padded).relu() * mask
        return self.score(features.sum(dim=(2, 3)) / mask.sum(dim=(2, 3)))


class PairsByRows(models.Pairs):
    """The piece's loss, weighted by its rows."""

    def forward(self, photos, captions):
        loss = super().forward(photos, captions)
        return (loss * len(photos)).reshape(1), torch.ones(1, device=loss.device) * len(photos)

    def after(self, output):
        return output[0].sum() / output[1].sum()


class PairsScores(models.Pairs):
    def forward(self, photos, captions):
        photos = F.normalize(self.photo(photos), dim=1)
        return self.scale.exp() * photos @ F.normalize(self.caption(captions), dim=1).T

    def after(self, scores):
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class PairsUnscaled(repaired.Pairs):
    def after(self, output):
        scores = output[0] @ output[1].T
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class PairsRows(repaired.Pairs):
    def after(self, output):
        return output


class PairsConstant(repaired.Pairs):
    """The scale's value without its gradient."""

    def after(self, output):
        scores = self.scale.item() and self.scale.detach().exp() * output[0] @ output[1].T
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class PairsCaptions(models.Pairs):
    """Another right one: every row brings all captions."""

    def before(self, photos, captions):
        rows = len(photos)
        return photos, captions.expand(rows, -1, -1), torch.arange(rows, device=photos.device)

    def forward(self, photos, captions, own):
        photos = F.normalize(self.photo(photos), dim=1)
        captions = F.normalize(self.caption(captions[0]), dim=1)
        return F.cross_entropy(self.scale.exp() * photos @ captions.T, own, reduction="none")

    def after(self, losses):
        return losses.mean()


class RoadsExpandedOnly(models.Roads):
    def before(self, traffic, roads):
        return traffic, roads.expand(len(traffic), -1, -1)


class RoadsKept(models.Roads):
    """Kept outside the wrapper, in an attribute that stays on one GPU."""

    def before(self, traffic, roads):
        self.roads = roads
        return traffic

    def forward(self, traffic):
        return super().forward(traffic, self.roads)


class RoadsMoved(RoadsKept):
    """Another right one."""

    def forward(self, traffic):
        return models.Roads.forward(self, traffic, self.roads.to(traffic.device))


class RoadsFirst(RoadsMoved):
    def before(self, traffic, roads):
        if not hasattr(self, "roads"):
            self.roads = roads
        return traffic


class RoadsTwice(models.Roads):
    def before(self, traffic, roads):
        return traffic, torch.cat([roads, roads.flip(0)])


class RoadsNumbers(models.Roads):
    """Another right one: what is no tensor is not cut."""

    def before(self, traffic, roads):
        return traffic, roads.tolist()

    def forward(self, traffic, roads):
        return super().forward(traffic, torch.tensor(roads, device=traffic.device))


class ClicksOffsets(models.Clicks):
    def before(self, clicks, counts):
        return clicks, counts.cumsum(0)

    def forward(self, clicks, ends):
        return super().forward(clicks, ends.diff(prepend=ends.new_zeros(1)))


class ClicksPadded(models.Clicks):
    def before(self, clicks, counts):
        return pad_sequence(clicks.split(counts.tolist()), batch_first=True), counts

    def forward(self, padded, counts):
        return self.taste(self.items(padded).mean(dim=1)) @ self.items.weight.T


class ClicksSummed(ClicksPadded):
    """The padding is added, and divided by the right number."""

    def forward(self, padded, counts):
        return self.taste(self.items(padded).sum(dim=1) / counts.unsqueeze(1)) @ self.items.weight.T


class ClicksList(models.Clicks):
    def before(self, clicks, counts):
        return (list(clicks.split(counts.tolist())),)

    def forward(self, baskets):
        users = torch.stack([self.items(basket).mean(dim=0) for basket in baskets])
        return self.taste(users) @ self.items.weight.T


class ClicksMasked(ClicksPadded):
    """Another right one."""

    def forward(self, padded, counts):
        real = torch.arange(padded.size(1), device=counts.device) < counts.unsqueeze(1)
        users = (self.items(padded) * real.unsqueeze(2)).sum(dim=1) / counts.unsqueeze(1)
        return self.taste(users) @ self.items.weight.T


def words(forward, after):
    class Words(models.Words):
        def forward(self, tokens, targets):
            scores = self.word(self.rnn(self.embed(tokens))[0])
            losses = F.cross_entropy(scores.transpose(1, 2), targets, ignore_index=-1, reduction="none")
            return forward(losses, targets != -1)

    Words.after = lambda self, output: after(output)
    return Words


def by_piece(losses, real):
    return losses.sum().reshape(1), real.sum().reshape(1)


def by_row(losses, real):
    return losses.sum(dim=1), real.sum(dim=1)


class WordsItem(models.Words):
    def forward(self, tokens, targets):
        return super().forward(tokens, targets).item()


class WordsByRows(models.Words):
    def forward(self, tokens, targets):
        loss = super().forward(tokens, targets)
        return (loss * len(tokens)).reshape(1), torch.full([1], len(tokens), device=loss.device)

    def after(self, output):
        return output[0].sum() / output[1].sum()


class WordsAdded(models.Words):
    def after(self, losses):
        return losses.sum()


class WordsScores(models.Words):
    def forward(self, tokens, targets):
        return self.word(self.rnn(self.embed(tokens))[0])

    def after(self, scores):
        return scores


class ExpertsMoved(models.Experts):
    """The layers follow the replica, and stay unknown to the model."""

    def forward(self, x):
        self.experts = [copy.deepcopy(expert).to(x.device) for expert in self.experts]
        return super().forward(x)


class ExpertsNamed(models.Experts):
    def __init__(self):
        super().__init__()
        for number, expert in enumerate(self.experts):
            self.add_module(f"expert{number}", expert)


class ExpertsFixed(repaired.Experts):
    def forward(self, x):
        return super().forward(x.to("cuda:0"))


class ExpertsMean(repaired.Experts):
    def forward(self, x):
        return torch.stack([expert(x) for expert in self.experts]).mean(dim=0)


class ExpertsDetached(repaired.Experts):
    def forward(self, x):
        shares = self.choose(x).softmax(dim=1)
        answers = torch.stack([expert(x).detach() for expert in self.experts], dim=1)
        return (shares.unsqueeze(2) * answers).sum(dim=1)


class ExpertsSequential(repaired.Experts):
    """Another right one: the same names."""

    def __init__(self):
        super().__init__()
        self.experts = nn.Sequential(*self.experts)


class WavesCleared(models.Waves):
    def before(self, x):
        self.waves.clear()
        return x


class WavesBuffer(models.Waves):
    def __init__(self, persistent=True):
        super().__init__()
        times, speeds = torch.arange(20).unsqueeze(1), 0.4 ** torch.arange(4)
        table = torch.cat([(times * speeds).sin(), (times * speeds).cos()], dim=1)
        self.register_buffer("table", table, persistent=persistent)

    def forward(self, x):
        x = x + self.table[: x.size(1)]
        return self.attention(x, x, x, need_weights=False)[0]


class WavesHidden(WavesBuffer):
    """Another right one."""

    def __init__(self):
        super().__init__(persistent=False)


class WavesShort(WavesBuffer):
    def __init__(self):
        super().__init__(persistent=False)
        self.table = self.table[:2]


class WavesHome(models.Waves):
    def forward(self, x):
        return super().forward(x.to("cuda:0"))


class WavesFirst(models.Waves):
    """Made for the first batch."""

    def forward(self, x):
        if not self.waves:
            times, speeds = torch.arange(x.size(1)).unsqueeze(1), 0.4 ** torch.arange(4)
            self.waves[0] = torch.cat([(times * speeds).sin(), (times * speeds).cos()], dim=1)
        x = x + self.waves[0].to(x.device)
        return self.attention(x, x, x, need_weights=False)[0]


class WavesByDevice(models.Waves):
    """Another right one."""

    def forward(self, x):
        key = x.size(1), x.device
        if key not in self.waves:
            times = torch.arange(x.size(1), device=x.device).unsqueeze(1)
            speeds = 0.4 ** torch.arange(4, device=x.device)
            self.waves[key] = torch.cat([(times * speeds).sin(), (times * speeds).cos()], dim=1)
        x = x + self.waves[key]
        return self.attention(x, x, x, need_weights=False)[0]


class WavesNone(models.Waves):
    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class SurpriseInPlace(models.Surprise):
    def forward(self, x):
        features = self.features(x)
        surprise = (features - self.usual) ** 2
        if self.training:
            self.usual.copy_(0.9 * self.usual + 0.1 * features.detach().mean(dim=0))
        return surprise


class SurpriseAlways(repaired.Surprise):
    def after(self, output):
        self.usual.lerp_(output[1].mean(dim=0), 0.1)
        return output[0]


class SurpriseTwice(repaired.Surprise):
    def after(self, output):
        super().after(output)
        return super().after(output)


class SurpriseMeans(models.Surprise):
    def forward(self, x):
        features = self.features(x)
        return (features - self.usual) ** 2, features.detach().mean(dim=0, keepdim=True)

    def after(self, output):
        if self.training:
            self.usual.lerp_(output[1].mean(dim=0), 0.1)
        return output[0]


class SurpriseLive(models.Surprise):
    """What goes into the buffer is not detached."""

    def forward(self, x):
        features = self.features(x)
        return (features - self.usual) ** 2, features

    def after(self, output):
        if self.training:
            self.usual = 0.9 * self.usual + 0.1 * output[1].mean(dim=0)
        return output[0]


class SurpriseOnlySurprise(models.Surprise):
    def after(self, surprise):
        if self.training:
            self.usual.lerp_(self.seen.mean(dim=0), 0.1)
        return surprise


class SurpriseSums(models.Surprise):
    """Another right one: sums and counts."""

    def forward(self, x):
        features = self.features(x)
        count = torch.full([1], len(x), device=x.device)
        return (features - self.usual) ** 2, features.detach().sum(dim=0, keepdim=True), count

    def after(self, output):
        surprise, sums, counts = output
        if self.training:
            self.usual = 0.9 * self.usual + 0.1 * sums.sum(dim=0) / counts.sum()
        return surprise


RIGHT = {
    "tagger": [TaggerByHand], "typist": [TypistStacked], "photos": [PhotosMasked], "pairs": [PairsCaptions],
    "roads": [RoadsMoved, RoadsNumbers], "clicks": [ClicksMasked],
    "words": [words(by_piece, lambda output: output[0].sum() / output[1].sum())],
    "experts": [ExpertsSequential], "waves": [WavesByDevice, WavesHidden], "surprise": [SurpriseSums],
}  # fmt: skip
# (class, the hint's id, points): what learners write, and how far it gets.
WRONG = {
    "tagger": [(tagger(lambda tokens, lengths: int(lengths.max())), "own_length", 0),
               (tagger(lambda tokens, lengths: 20), "fixed_length", 0),
               (tagger(lambda tokens, lengths: tokens.size(1), cpu=False), "lengths_on_gpu", 0),
               (TaggerCut, "cut_off", 0), (TaggerUnpacked, "padding_read", 0)],
    "typist": [(TypistInside, "state_cut", 0), (TypistIn, "state_joined", 0),
               (TypistOut, "not_turned_back", 0), (TypistFlat, "places", 0),
               (TypistForgets, "state_unused", 0), (TypistReshaped, "reshaped", 0)],
    "photos": [(PhotosStacked, "unequal", 0), (PhotosPadded, "padding_counted", 0),
               (PhotosScaled, "changed", 0), (PhotosGray, "changed", 0), (PhotosList, "list_cut", 0)],
    "pairs": [(PairsByRows, "own_piece", 0), (PairsScores, "square", 0), (PairsUnscaled, "other_loss", 0),
              (PairsRows, "no_loss", 0), (PairsConstant, "no_gradient", 8)],
    "roads": [(RoadsExpandedOnly, "shape_in_forward", 0), (RoadsKept, "stays", 0),
              (RoadsFirst, "first_city", 0), (RoadsTwice, "other_roads", 0)],
    "clicks": [(ClicksOffsets, "flat", 0), (ClicksPadded, "padding_counted", 0),
               (ClicksSummed, "other_basket", 0), (ClicksList, "list_cut", 0)],
    "words": [
        (WordsItem, "plain_number", 0), (WordsByRows, "mean_of_means", 0), (WordsAdded, "added", 0),
        (WordsScores, "no_loss", 0),
        (words(by_row, lambda output: output[0].sum()), "sum", 0),
        (words(by_row, lambda output: (output[0] / output[1]).mean()), "by_sentence", 0),
        (words(by_row, lambda output: output[0].sum() / len(output[0])), "divided_by_rows", 0),
        (words(by_row, lambda output: (output[0].sum() / output[1].sum()).detach()), "no_gradient", 8),
    ],
    "experts": [(ExpertsMoved, "plain_list", 0), (ExpertsNamed, "other_names", 0),
                (ExpertsFixed, "fixed_device", 0), (ExpertsMean, "mixed_otherwise", 0),
                (ExpertsDetached, "no_gradient", 8)],
    "waves": [(WavesCleared, "first_come", 0), (WavesHome, "first_come", 0), (WavesBuffer, "saved", 0),
              (WavesShort, "stale", 0), (WavesFirst, "stale", 0), (WavesNone, "other_waves", 0)],
    "surprise": [(SurpriseInPlace, "first_piece", 0), (SurpriseAlways, "eval", 8),
                 (SurpriseTwice, "other_update", 0), (SurpriseMeans, "mean_of_means", 5),
                 (SurpriseLive, "history", 8), (SurpriseOnlySurprise, "after", 0)],
}  # fmt: skip
# What the broken models themselves are told.
BROKEN = {
    "tagger": "own_length", "typist": "state_cut", "photos": "channels", "pairs": "own_piece", "roads": "roads_cut",
    "clicks": "flat", "words": "mean_of_means", "experts": "plain_list", "waves": "first_come", "surprise": "lost",
}  # fmt: skip
PROBLEMS = problems("09")
NAMES = list(PROBLEMS)
ATTEMPTS = [(name, *attempt) for name in NAMES for attempt in WRONG[name]]


@pytest.fixture(autouse=True)
def _own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress, "_unwritten", set())


def test_every_model_has_typical_wrong_repairs():
    assert all(len(WRONG[name]) >= 3 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_right_repair_gets_all_points_whatever_is_drawn(name):
    for seed, model in enumerate(RIGHT[name]):  # the reference repair: test_broken.py
        assert judge(PROBLEMS[name], model, Random(seed)) == (10, None), model


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in (1, 2))])
@pytest.mark.parametrize("name", NAMES)
def test_the_broken_model_gets_no_points_whatever_is_drawn(name, seed):
    found = judge(PROBLEMS[name], PROBLEMS[name].broken, Random(seed))
    assert (found.points, found.hint.id) == (0, BROKEN[name])


@pytest.mark.parametrize(("name", "model", "id", "points"), ATTEMPTS)
def test_a_wrong_repair_gets_the_hint_for_its_misconception(name, model, id, points):
    found = judge(PROBLEMS[name], model, Random(len(id)))
    assert (found.points, found.hint.id) == (points, id)


@pytest.mark.parametrize("name", NAMES)
def test_a_hint_is_in_both_languages(name):
    model, id, _ = WRONG[name][-1]
    found = {}
    for language in ("en", "zh"):
        with using(language):
            found[language] = judge(PROBLEMS[name], model, Random(1)).hint
    assert (found["en"].id, found["zh"].id) == (id, id)
    assert re.search("[一-鿿]", found["zh"].zh)
    assert glossary.problems(found["en"].en, found["zh"].zh) == []


def test_a_score_keeps_the_best_and_counts_hints(tmp_path):
    surprise = {id: model for model, id, _ in WRONG["surprise"]}
    assert "Right as long as all pieces are full. 5 of 10 points so far; " in repr(
        repair("surprise", surprise["mean_of_means"])
    )
    assert score.points("surprise") == 5
    assert "Results are right everywhere. 8 of 10 points so far; " in repr(
        repair("surprise", surprise["eval"])
    )
    assert "(Your best, 8 of 10, stays.)" in repr(repair("surprise", surprise["first_piece"]))
    hint("surprise", 2)
    hint("surprise", 2)
    hint("surprise")
    assert (score.taken("surprise"), score.points("surprise")) == (2, 5)
    assert "10 of 10 points, 3 of them spent on hints. In all 7 of 100." in repr(
        repair("surprise", PROBLEMS["surprise"].repaired)
    )
    kept = json.loads((tmp_path / "progress.json").read_text("utf-8"))
    assert kept == {
        "hinted": ["surprise 1", "surprise 2"],
        "reached": [f"surprise {n}" for n in (0, 10, 5, 8)],
    }
    board = repr(Progress())
    assert "Ten broken models: 7 of 100 points" in board
    assert "  Surprise  best 10, hints 2, points  7" in board
    with using("zh"):
        assert "十个出了毛病的模型：7 / 100 分" in repr(Progress())
