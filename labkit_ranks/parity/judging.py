"""Compare a layout with the reference: the first tensor that differs, and what the difference suggests."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.base.language import series
from labkit_diagnose.result import Finding

from ..calls.faults import format_ranks
from ..diagnosis.one_gpu import matching_ways
from ..diagnosis.records import RankRecord
from .matching import Matches, assemble
from .recording import RankTraining, public_name
from .words import CAUSES, PHRASES

_EPS = torch.finfo(torch.float32).eps
# Relative differences: the least that counts in float32 (rounding stays near 1e-6, bugs are above 5e-3), factors of it
# for the second and for later steps, and what rounding to 16 bits stays below.
_LEAST, _SECOND, _LATER, _SIXTEEN_BITS = 1e-4, 10.0, 100.0, 0.04
_WAYS = [(passes, ranks) for passes in (False, True) for ranks in (False, True)]


@dataclass
class LayoutRun:
    """The records of one layout's run.

    who       the layout's name; ``matches`` has the reference's tensor of each piece.
    """

    who: str
    trainings: Sequence[RankTraining]
    failure: tuple[int, BaseException] | None = None
    matches: Matches = field(default_factory=dict)

    @property
    def records(self) -> list[RankRecord]:
        return [one.record for one in self.trainings]

    @property
    def steps(self) -> int:
        return min(len(one.squares) for one in self.trainings)

    def norms(self) -> list[float]:
        """Return the norm of the whole gradient in each step."""
        return [math.sqrt(sum(self.squares(step).values())) for step in range(1, self.steps + 1)]

    def squares(self, step: int) -> dict[str, float]:
        """Return each tensor's sum of squares in ``step``, with replicas counted once."""
        found = dict[str, list[float]]()
        for (rank, name), match in self.matches.items():
            piece, sums = self.trainings[rank].weights[0][name], found.setdefault(match.name, [0.0, 0, 0])
            square, held = self.trainings[rank].squares[step].get(name, (0.0, len(piece.value)))
            sums[0], sums[2] = sums[0] + square, sums[2] + held
            sums[1] = match.size
        return {name: square * size / max(held, 1) for name, (square, size, held) in found.items()}

    def losses(self, like: Sequence[float] = ()) -> list[float]:
        """Return the loss of each step: the mean or sum over passes and ranks that fits ``like`` in the first step."""
        found = []
        for add_passes, add_ranks in _WAYS:
            losses = []
            for step in range(1, self.steps + 1):
                each = [some for one in self.trainings if (some := one.losses.get(step))]
                sums = [sum(some) / (1 if add_passes else len(some)) for some in each]
                losses.append(sum(sums) / (1 if add_ranks else len(sums)) if sums else math.nan)
            found.append(losses)
        return min(found, key=lambda losses: abs(losses[0] - like[0])) if like and self.steps else found[0]

    def read(self, step: int, what: str) -> Tensor | None:
        """Return the sorted numbers that the ranks read; ranks that read the same numbers count once."""
        each = [
            torch.cat(one.read[step, what]).sort()[0] for one in self.trainings if (step, what) in one.read
        ]
        if what == "inputs":  # a schedule that infers shapes reads some twice
            each = [one.unique() for one in each]
        different = {tuple(one.tolist()): one for one in each}
        return torch.cat(list(different.values())).sort()[0] if each else None

    def standstill(self, losses: Sequence[float]) -> str:
        """Return the reason if this training stands still, else ""."""
        norms, last, steps = self.norms(), losses[-1], len(losses)
        classes = max(one.classes for one in self.trainings)
        if not all(map(math.isfinite, norms)):
            return PHRASES["dead.infinite"]()
        if not max(norms):
            return PHRASES["dead.norm"]()
        if steps > 2 and max(losses) - min(losses) <= 1e-6 * abs(last):
            return PHRASES["dead.flat"](loss=last, steps=steps)
        if steps >= 10 and classes > 1 and abs(last / math.log(classes) - 1) < 1e-3:
            return PHRASES["dead.chance"](loss=last, steps=steps, classes=classes)
        return ""


class Gap(NamedTuple):
    """The difference of a rank's gradient: relative size, least-squares factor, and the rest beside that factor."""

    rank: int
    gap: float
    factor: float
    rest: float


class Difference(NamedTuple):
    """The first difference: its cause (a key of ``causes.txt``), tensor and facts."""

    cause: str
    first: str = ""
    facts: Mapping[str, Any] = {}


class LayoutComparison:
    """The comparison of ``run`` with ``reference``.

    gaps        the largest relative difference of each gradient in the first step, in backward order.
    tolerance   the largest difference that counts as rounding.
    finding     the first difference; ``cause``, ``first``, ``step`` and ``uncompared`` tell more.
    """

    def __init__(self, run: LayoutRun, reference: LayoutRun) -> None:
        self.run, self.reference, self.step = run, reference, 1
        eps = max(
            (seen.eps for one in (*run.records, *reference.records) for seen in one.seen.values()),
            default=0.0,
        )
        read = [one for what in ("targets", "inputs") if (one := reference.read(1, what)) is not None]
        self.tolerance = max(_LEAST, 4 * _EPS * math.sqrt(max(map(len, read), default=1)))
        self.tolerance += 4 * eps if eps > 1e-6 else 0.0
        self.there = reference.losses()
        self.here = run.losses(self.there)
        self.gaps: dict[str, float] = {}
        self.uncompared: tuple[str, ...] = ()
        self.finding: Finding | None = None
        found = self._find_difference()
        self.cause, self.first = (found.cause.partition(".")[0], found.first) if found else ("", "")
        if found and self.cause == "uncompared":
            self.uncompared = (PHRASES[found.cause](who=run.who, **found.facts),)
        elif found:
            kind, first = CAUSES[found.cause], found.first
            facts = {"step": self.step, "name": first, "loss": self._loss_text()} | dict(found.facts)
            where = ", ".join(filter(None, [first, self._line(first)]))
            self.finding = kind(where, **{name: facts[name] for name in kind.facts})

    def _find_difference(self) -> Difference | None:
        """Compare in the order in which faults arise, and return the first difference."""
        for step in range(1, min(self.run.steps, self.reference.steps, 2) + 1):
            self.step, self.bound = step, self.tolerance * (_SECOND if step > 1 else 1)
            self._measure_gaps()
            largest = {name: max(one.gap for one in some) for name, some in self.each.items()}
            self.gaps = self.gaps or largest
            self.bad = [name for name, gap in largest.items() if not gap <= self.bound]
            differs = self._loss_gap() > self.bound
            looks: list[Iterator[Difference]] = [self._other_rows(), self._other_masks()] if differs else []
            looks += [self._own_counts()] if differs or self.bad else []
            looks += [self._factors(), self._missing_sums(), self._cut_graph()] if self.bad else []
            looks += [self._other_outputs()] if differs else []
            looks += [self._other_gradients()] if self.bad else [] if differs else [self._other_updates()]
            found = next((one for look in looks for one in look), Difference("order") if differs else None)
            if found:
                return found
        return next(self._later(), None)

    def _loss_gap(self) -> float:
        here, there = self.here[self.step - 1], self.there[self.step - 1]
        return 0.0 if math.isnan(there) else abs(here - there) / max(abs(there), 1e-12)

    def _loss_text(self) -> str:
        if math.isnan(self.there[self.step - 1]):
            return PHRASES["loss.none"]()
        gap = self._loss_gap()
        return PHRASES["loss.off"](off=100 * gap) if not gap <= self.bound else PHRASES["loss.equal"]()

    def _line(self, name: str) -> str:
        """Return the line that called the module of ``name``, or else the line of backward."""
        lines = {
            public_name(key[2]): seen.place
            for one in self.run.records for key, seen in one.seen.items() if key[:2] == (1, "output")
        }  # fmt: skip
        while name and name not in lines:
            name = name.rpartition(".")[0]
        return lines.get(name, "") or self.run.records[0].steps[self.step - 1].place

    def _measure_gaps(self) -> None:
        """Measure the gaps of all gradients by the reference's names, in backward order."""
        self.wholes = assemble([one.gradients.get(self.step, {}) for one in self.reference.trainings])
        layers, found = dict[str, list[float]](), dict[str, list[Gap]]()
        for name, whole in self.wholes.items():
            some = layers.setdefault(_layer(name), [0.0, 0])
            some[0], some[1] = some[0] + float(whole.double().square().sum()), some[1] + whole.numel()
        self.held = dict[str, dict[int, tuple[Tensor, Tensor]]]()
        for (rank, name), match in self.run.matches.items():
            if match.name in self.wholes:
                piece, places = self.run.trainings[rank].gradients[self.step].get(name), match.places
                if piece is not None and len(piece.places) != len(
                    places
                ):  # cut in another way than its parameter
                    places = piece.places
                there = self.wholes[match.name].reshape(-1)[places].double()
                here = torch.zeros_like(there) if piece is None else piece.value.double()
                self.held.setdefault(match.name, {})[rank] = places, here
                squares, numbers = layers[_layer(match.name)]
                # Judge a tensor with a tiny gradient against its layer.
                size = max(
                    float(there.norm()), 0.01 * math.sqrt(squares * len(there) / max(numbers, 1)), 1e-30
                )
                factor = float(here.dot(there)) / max(float(there.dot(there)), 1e-30)
                rest = float((here - factor * there).norm()) / max(float(here.norm()), 1e-30)
                found.setdefault(match.name, []).append(
                    Gap(rank, float((here - there).norm()) / size, factor, rest)
                )
        outputs = [public_name(key[2]) for key in self.reference.records[0].seen if key[:2] == (1, "output")]
        called = {name: at for at, name in reversed([*enumerate(outputs)])}
        order = {name: (called.get(name.rpartition(".")[0], -1), at) for at, name in enumerate(self.wholes)}
        self.each = {name: found[name] for name in sorted(found, key=order.__getitem__, reverse=True)}

    def _are_close(self, factors: Sequence[float]) -> bool:
        return max(factors) - min(factors) <= 0.2 * self.tolerance * max(map(abs, factors))

    # What differs in forward.

    def _other_rows(self) -> Iterator[Difference]:
        for what in ("targets", "inputs"):
            here, there = self.run.read(self.step, what), self.reference.read(self.step, what)
            if here is not None and there is not None:
                facts = {"here": len(here), "there": len(there), "what": PHRASES[what]()}
                more, unique = len(here) / len(there), len(here.unique()) - len(there.unique())
                if more > 1 and (unique > 0 or more.is_integer()):
                    yield Difference("uncompared.rows", "", facts)
                elif not torch.equal(here, there):
                    yield Difference("rows", "", facts)
                return

    def _other_masks(self) -> Iterator[Difference]:
        if any(
            draw.step == self.step and not draw.shape for one in self.run.records for draw, _ in one.draws
        ):
            yield Difference("uncompared.random")

    def _own_counts(self) -> Iterator[Difference]:
        steps = [one.steps[self.step - 1].losses for one in self.run.records]
        losses = [[one for one in some if one.weight and one.count] for some in steps]
        weights = [one.weight or 0.0 for some in losses for one in some]
        if weights and 0 < 1.001 * min(weights) < max(weights):
            counts = [sum(one.count for one in some) for some in losses]
            mean = sum((one.weight or 0.0) * one.count for some in losses for one in some) / sum(counts)
            facts = {"lowest": min(weights) / mean, "highest": max(weights) / mean}
            yield Difference(
                "denominator.unequal", "", facts | {"counts": series(f"{one:g}" for one in counts)}
            )

    def _other_outputs(self) -> Iterator[Difference]:
        ours = [
            {
                (public_name(key[2]), key[3]): seen
                for key, seen in one.seen.items()
                if key[:2] == (self.step, "output")
            }
            for one in self.run.records
        ]
        for key, seen in self.reference.records[0].seen.items():
            name = public_name(key[2])
            many = [one[name, key[3]] for one in ours if (name, key[3]) in one]
            if key[:2] != (self.step, "output") or len(many) < len(ours):
                continue
            ways = set(matching_ways(seen, many, self.tolerance**1.7))
            if "alike" not in ways and all(one.local == seen.local for one in many) and "parts" in ways:
                yield Difference("order", name)
            if not ways & {"alike", "parts"}:
                yield Difference("reduction.forward" if "sum" in ways else "forward", name)

    # What differs in backward.

    def _factors(self) -> Iterator[Difference]:
        """Yield a factor of all ranks, or factors by rank of all tensors."""
        first, by_rank = self.each[self.bad[0]], dict[int, list[float]]()
        for one in (gap for name in self.bad for gap in self.each[name]):
            by_rank.setdefault(one.rank, []).append(one.factor)
        if any(one.rest > 10 * self.tolerance or abs(one.factor) < 1e-3 for one in first):
            return
        factors, norms = [one.factor for one in first], self.reference.norms()
        everywhere = len(self.bad) >= 0.9 * len(self.each) and all(map(self._are_close, by_rank.values()))
        known = self._known_factor(factors[0])
        # A reference whose norm never changes has been clipped by hand.
        clipped = len(norms) > 2 and self._are_close(norms) and not known
        if everywhere and (clipped or not self._are_close(factors)):
            yield Difference("norm", self.bad[0], {"ratios": series(f"{one:.4g}" for one in factors[:8])})
        if self._are_close(factors):
            same = sum(
                self._are_close([factors[0], *(one.factor for one in self.each[name])]) for name in self.bad
            )
            facts = {"ratio": f"{factors[0]:.4g}", "known": known, "same": same, "all": len(self.each)}
            yield Difference("denominator", self.bad[0], facts)

    def _known_factor(self, factor: float) -> str:
        """Return the meaning of a factor: a number of ranks, of passes, or of targets."""
        targets = self.reference.read(self.step, "targets")
        passes = max(len(one.losses.get(self.step, ())) for one in self.run.trainings)
        numbers = {
            "ranks": len(self.run.trainings),
            "passes": passes,
            "targets": 0 if targets is None else len(targets),
        }
        forms = {1.0: "{}", -1.0: "1/{}", 0.5: "√{}", -0.5: "1/√{}"}
        found = (
            PHRASES[f"factor.{what}"](factor=form.format(count))
            for what, count in numbers.items() for power, form in forms.items()
            if count > 1 and abs(factor / count**power - 1) < 1e-3
        )  # fmt: skip
        return next(found, "")

    def _missing_sums(self) -> Iterator[Difference]:
        """Yield a group of ranks whose gradients add up to the reference's."""
        first = self.bad[0]
        held, whole = self.held[first], self.wholes[first].reshape(-1).double()
        groups = {tuple(sorted(held))} | {
            tuple(sorted(ranks))
            for one in self.run.records for ranks in (*one.peers, *one.exchanges, *one.calls, one.replicas)
        }  # fmt: skip
        for group in sorted((one for one in groups if len(one) > 1 and set(one) <= set(held)), key=len):
            places = held[group[0]][0]
            if all(torch.equal(held[rank][0], places) for rank in group):
                total, there = torch.stack([held[rank][1] for rank in group]).sum(0), whole[places]
                for way, count in (("sum", 1), ("mean", len(group))):
                    if float((total / count - there).norm()) < 10 * self.tolerance * float(there.norm()):
                        facts = {"way": PHRASES[f"way.{way}"](), "ranks": format_ranks(group)}
                        yield Difference("reduction", first, facts)

    def _cut_graph(self) -> Iterator[Difference]:
        first = self.bad[0]
        if not any(here.any() for _, here in self.held[first].values()):
            yield Difference("cut", first, {"there": float(self.wholes[first].norm())})

    def _other_gradients(self) -> Iterator[Difference]:
        first, gaps = self.bad[0], self.each[self.bad[0]]
        draws = [draw for one in self.run.records for draw, _ in one.draws]
        if {one.state for one in draws if one.backward} - {one.state for one in draws if not one.backward}:
            yield Difference("random", first)
        off, values = (
            100 * max(one.gap for one in gaps),
            [here.float() for _, here in self.held[first].values()],
        )
        for dtype in (torch.bfloat16, torch.float16):
            cast = all(torch.equal(one, one.to(dtype).float()) for one in values)
            small = max(one.gap for name in self.bad for one in self.each[name]) < _SIXTEEN_BITS
            if cast or (small and all(abs(one.factor - 1) < 0.01 for one in gaps)):
                yield Difference("rounding", first, {"off": off, "dtype": str(dtype).removeprefix("torch.")})
        ratios = series(f"{one.factor:.3g}" for one in gaps[:8])
        yield Difference("backward", first, {"off": off, "ratios": ratios})

    # What differs after backward.

    def _other_updates(self) -> Iterator[Difference]:
        """Compare the ranks' copies after a step and at the end, and the size of the update with the reference's."""
        before, after = (
            assemble([one.weights[at] for one in self.reference.trainings])
            for at in (self.step - 1, self.step)
        )
        squares, copies = (
            self.reference.squares(self.step),
            dict[tuple[str, bytes], tuple[int, list[Tensor]]](),
        )
        for (rank, name), match in self.run.matches.items():
            weights = self.run.trainings[rank].weights
            if match.name not in self.each or squares[match.name] < 1e-8 * sum(squares.values()):
                continue  # noise that Adam enlarges
            here = weights[self.step][name].value - weights[self.step - 1][name].value
            there = (after[match.name] - before[match.name]).reshape(-1)[match.places]
            if (
                there.norm() > 1e-5 * weights[0][name].value.norm()
                and abs(here.norm() / there.norm() - 1) > 0.05
            ):
                yield Difference("update", match.name, {"ratio": f"{float(here.norm() / there.norm()):.3g}"})
            values = [
                weights[at][name].value for at in (self.step, max(weights) if -1 not in weights else -1)
            ]
            other, copy = copies.setdefault((match.name, match.places.numpy().tobytes()), (rank, values))
            for mine, theirs in zip(values, copy, strict=True):
                if float((mine - theirs).norm()) > 1e-5 * max(float(theirs.norm()), 1e-12):
                    yield Difference("drift", match.name, {"ranks": format_ranks([other, rank])})

    def _later(self) -> Iterator[Difference]:
        """Compare printed norms, and norms of gradients in later steps."""
        printed = zip(*(one.trainings[0].printed_norms() for one in (self.run, self.reference)), strict=False)
        for step, (here, there) in enumerate(printed, 1):
            self.step = step
            digits = max(len(one.partition(".")[2].partition("e")[0]) for one in (here, there))
            if abs(float(here) - float(there)) > 1e-3 * float(there) + 10.0**-digits:
                times = f"{float(here) / (float(there) or math.nan):.3g}"
                yield Difference("norm.printed", "", {"here": here, "there": there, "ratio": times})
        for step in range(3, min(self.run.steps, self.reference.steps) + 1):
            self.step, squares, others = step, self.run.squares(step), self.reference.squares(step)
            for name, square in others.items():
                ratio = math.sqrt(squares.get(name, 0.0) / max(square, 1e-30))
                if square > 1e-4 * sum(others.values()) and abs(ratio - 1) > _LATER * self.tolerance:
                    yield Difference("later", name, {"ratio": f"{ratio:.3g}", "before": self.step - 1})


def _layer(name: str) -> str:
    """Return the layer of a parameter: its name up to the first number, or else its module."""
    numbered = re.match(r".*?\.\d+(?=\.)", name)
    return numbered[0] if numbered else name.rpartition(".")[0]
