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
from .matching import Match, assemble
from .recording import RankTraining, public_name
from .words import CAUSES, PHRASES

_EPS = torch.finfo(torch.float32).eps
# Relative differences: the least that counts in float32 (rounding stays near 1e-6, bugs are above 5e-3), the factor
# for steps after the first, and what a difference of rounding in 16 bits stays below.
_LEAST, _LATER, _SIXTEEN_BITS = 1e-4, 10.0, 0.04


@dataclass
class LayoutRun:
    """The records of one layout's run.

    who       the layout's name; ``matches`` has the reference's tensor of each piece.
    """

    who: str
    records: Sequence[RankRecord]
    trainings: Sequence[RankTraining]
    failure: tuple[int, BaseException] | None = None
    matches: Mapping[tuple[int, str], Match] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return min(len(one.squares) for one in self.trainings)

    def norms(self) -> list[float]:
        """Return the norm of the whole gradient in each step."""
        return [math.sqrt(sum(self.squares(step).values())) for step in range(1, self.steps + 1)]

    def squares(self, step: int) -> dict[str, float]:
        """Return each tensor's sum of squares in ``step``, with replicas counted once."""
        held, total, found = dict[str, int](), dict[str, int](), dict[str, float]()
        for (rank, name), match in self.matches.items():
            piece = self.trainings[rank].weights[0][name]
            held[match.name] = held.get(match.name, 0) + piece.value.numel()
            total[match.name] = math.prod(piece.shape) * match.part[1]
            square = self.trainings[rank].squares[step].get(name, 0.0)
            found[match.name] = found.get(match.name, 0.0) + square
        return {name: value * total[name] / max(held[name], 1) for name, value in found.items()}

    def losses_by(self, way: str) -> list[float]:
        """Return the loss of each step: ``way`` says how the losses of passes, and of ranks, are put together."""
        passes, ranks = way.split()
        found = []
        for step in range(1, self.steps + 1):
            each = [one.losses[step] for one in self.trainings if one.losses.get(step)]
            sums = [sum(some) / (len(some) if passes == "mean" else 1) for some in each]
            found.append(sum(sums) / (len(sums) if ranks == "mean" else 1) if sums else math.nan)
        return found

    def read(self, step: int, what: str) -> Tensor | None:
        """Return the sorted numbers that the ranks read, with ranks that read the same numbers counted once."""
        each = [one.read[step, what] for one in self.trainings if (step, what) in one.read]
        sort = torch.unique if what == "inputs" else lambda numbers: numbers.sort()[0]
        numbers = (sort(torch.cat(some)) for some in each)
        different = {tuple(one.tolist()): one for one in numbers}
        return sort(torch.cat(list(different.values()))) if different else None


class Gap(NamedTuple):
    """The difference of a rank's gradient: relative size, least-squares factor, and the rest beside that factor."""

    rank: int
    gap: float
    factor: float
    rest: float


@dataclass(frozen=True)
class Verdict:
    """The outcome of comparing a layout with the reference.

    finding     the difference, or None; ``cause`` is its key.
    first       the first tensor that differs; ``gaps`` has the largest relative difference of each gradient in the
                first step, in backward order.
    uncompared  reasons why something was not compared; ``notes`` what was made equal.
    compared    whether gradients were compared.
    """

    finding: Finding | None = None
    cause: str = ""
    first: str = ""
    step: int = 0
    gaps: Mapping[str, float] = field(default_factory=dict)
    uncompared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    compared: bool = False


_WAYS = [f"{passes} {ranks}" for passes in ("mean", "sum") for ranks in ("mean", "sum")]


def fitting_losses(run: LayoutRun, like: Sequence[float]) -> list[float]:
    """Return the losses of ``run``, put together in the way that fits the reference's first loss best."""
    found = [run.losses_by(way) for way in _WAYS]
    return min(found, key=lambda losses: abs(losses[0] - like[0]) if losses and like else 0.0)


def find_standstill(
    who: str, losses: Sequence[float], norms: Sequence[float], classes: int
) -> Finding | None:
    """Return the finding of a training that does not train."""
    last, steps, why = losses[-1] if losses else math.nan, len(losses), ""
    if norms and not max(norms):
        why = PHRASES["dead.norm"]()
    elif steps > 2 and max(losses) - min(losses) <= 1e-6 * abs(last):
        why = PHRASES["dead.flat"](loss=last, steps=steps)
    elif steps >= 10 and classes > 1 and abs(last - math.log(classes)) < 1e-3 * math.log(classes):
        why = PHRASES["dead.chance"](loss=last, steps=steps, classes=classes)
    return CAUSES["dead"](who=who, why=why) if why else None


class LayoutComparison:
    """The comparison of ``run`` with ``reference``, step by step."""

    def __init__(self, run: LayoutRun, reference: LayoutRun) -> None:
        self.run, self.reference = run, reference
        self.count = len(run.trainings)
        eps = [seen.eps for one in (*run.records, *reference.records) for seen in one.seen.values()]
        terms = max(
            (
                len(one)
                for one in (reference.read(1, what) for what in ("targets", "inputs"))
                if one is not None
            ),
            default=1,
        )
        self.half = max(eps, default=0.0) > 1e-6
        self.tolerance = max(_LEAST, 4 * _EPS * math.sqrt(terms)) + (4 * max(eps) if self.half else 0.0)
        self.modules = {
            public_name(name): (at, seen.place)
            for at, ((step, what, name, number), seen) in enumerate(reference.records[0].seen.items())
            for _ in [0] if (step, what, number) == (1, "output", 1)
        }  # fmt: skip
        self.lines = {
            public_name(key[2]): seen.place
            for one in run.records for key, seen in one.seen.items() if key[0] == 1 and key[1] == "output"
        }  # fmt: skip
        self.there = fitting_losses(reference, reference.losses_by(_WAYS[0]))
        self.here = fitting_losses(run, self.there)

    def judge(self) -> Verdict:
        """Compare in the order in which faults arise, and stop at the first difference."""
        gaps: dict[str, float] = {}
        for step in (1, 2):
            if step > min(self.run.steps, self.reference.steps):
                break
            each = self._gaps(step)
            bound = self.tolerance * (_LATER if step > 1 else 1)
            largest = {name: max(one.gap for one in some) for name, some in each.items()}
            gaps = gaps or largest
            bad = [name for name, gap in largest.items() if not gap <= bound]
            if bad or self._loss_gap(step) > bound:
                return self._explain(step, bad, each, gaps)
            if (verdict := self._judge_update(step)) is not None:
                return Verdict(*verdict, step, gaps, compared=True)
        for found in (self._find_printed_norm(), self._find_later()):
            if found is not None:
                return Verdict(*found, gaps, compared=True)
        return Verdict(gaps=gaps, compared=bool(gaps))

    def _loss_gap(self, step: int) -> float:
        here, there = self.here[step - 1], self.there[step - 1]
        gap = abs(here - there) / max(abs(there), 1e-12)
        return 0.0 if math.isnan(gap) and math.isnan(there) else gap

    def _gaps(self, step: int) -> dict[str, list[Gap]]:
        """Return the gaps of all gradients by the reference's names, in backward order."""
        wholes = assemble([one.gradients.get(step, {}) for one in self.reference.trainings])
        shares = dict[str, list[float]]()
        for name, whole in wholes.items():
            some = shares.setdefault(_layer(name), [0.0, 0.0])
            some[0] += float(whole.double().square().sum())
            some[1] += whole.numel()
        found = dict[str, list[Gap]]()
        for (rank, name), match in self.run.matches.items():
            if match.name not in wholes:
                continue
            a = wholes[match.name].reshape(-1)[match.places].double()
            piece = self.run.trainings[rank].gradients.get(step, {}).get(name)
            g = (
                torch.zeros_like(a)
                if piece is None or piece.value.numel() != a.numel()
                else piece.value.double()
            )
            squares, numbers = shares[_layer(match.name)]
            size = max(float(a.norm()), 0.01 * math.sqrt(squares * a.numel() / max(numbers, 1)), 1e-30)
            factor = float(g.dot(a)) / max(float(a.dot(a)), 1e-30)
            rest = float((g - factor * a).norm()) / max(float(g.norm()), 1e-30)
            found.setdefault(match.name, []).append(Gap(rank, float((g - a).norm()) / size, factor, rest))
        order = {name: at for at, name in enumerate(wholes)}
        place = {name: self.modules.get(name.rpartition(".")[0], (-1, ""))[0] for name in found}
        return dict(sorted(found.items(), key=lambda one: (-place[one[0]], -order[one[0]])))

    # What a difference suggests.

    def _explain(
        self, step: int, bad: Sequence[str], each: Mapping[str, list[Gap]], gaps: Mapping[str, float]
    ) -> Verdict:
        off = self._loss_gap(step)
        differs = off > self.tolerance * (_LATER if step > 1 else 1)
        word = "off" if differs else "none" if math.isnan(self.there[step - 1]) else "equal"
        facts: dict[str, Any] = {
            "step": step,
            "loss": PHRASES[f"loss.{word}"](**({"off": 100 * off} if differs else {})),
        }
        drew = any(record.drew for record in (*self.run.records, *self.reference.records))
        masks = self._masks()
        for found in self._looks(step, bad, each, differs, facts, drew and masks):
            if found is None:
                return Verdict(gaps=gaps, uncompared=(PHRASES["uncompared.random"](who=self.run.who),))
            key, first, more = found
            where = ", ".join(filter(None, [first, self._line(first, step)]))
            needed = CAUSES[key].facts
            known = {
                name: value for name, value in (facts | {"name": first} | more).items() if name in needed
            }
            return Verdict(
                CAUSES[key](where, **known), key.partition(".")[0], first, step, gaps, compared=True
            )
        raise NotImplementedError

    def _looks(
        self,
        step: int,
        bad: Sequence[str],
        each: Mapping[str, list[Gap]],
        differs: bool,
        facts: dict[str, Any],
        redrawn: bool,
    ) -> Iterator[tuple[str, str, dict[str, Any]] | None]:
        """Yield (cause, first tensor, facts) for each explanation, the surest first; None if masks differ."""
        if differs:
            yield from self._different_rows(step)
            if any(record.drew for record in self.run.records) and step == 1:
                yield None
            yield from self._unequal_weights(step)
        first = bad[0] if bad else ""
        if first:
            yield from self._scaled(step, bad, each)
            yield from self._missing_sums(step, first, each[first])
            if redrawn:
                yield "random", first, {}
            if all(not abs(one.factor) and one.rest < self.tolerance for one in each[first]):
                there = assemble([one.gradients[step] for one in self.reference.trainings])[first].norm()
                yield "cut", first, {"there": float(there)}
        if differs:
            yield from self._forward(step)
        if first:
            off = max(one.gap for one in each[first])
            if dtype := self._rounded(step, first, each, bad):
                yield "rounding", first, {"off": 100 * off, "dtype": dtype}
            ratios = series(f"{one.factor:.3g}" for one in each[first][:8])
            yield ("forward" if differs else "backward"), first, {"off": 100 * off, "ratios": ratios}
        yield "order", "", {"name": "?"}

    def _different_rows(self, step: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for what in ("targets", "inputs"):
            here, there = self.run.read(step, what), self.reference.read(step, what)
            if here is not None and there is not None:
                if not torch.equal(here, there):
                    yield "rows", "", {"here": len(here), "there": len(there), "what": PHRASES[what]()}
                return

    def _unequal_weights(self, step: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
        losses = [
            [one for one in record.steps[step - 1].losses if one.weight and one.count]
            for record in self.run.records
        ]
        weights = [one.weight or 0.0 for some in losses for one in some]
        if weights and min(weights) > 0 and max(weights) > 1.001 * min(weights):
            counts = [sum(one.count for one in some) for some in losses]
            mean = sum((one.weight or 0) * one.count for some in losses for one in some) / sum(counts)
            yield "denominator.unequal", "", {
                "counts": series(f"{count:g}" for count in counts),
                "lowest": min(weights) / mean, "highest": max(weights) / mean,
            }  # fmt: skip

    def _scaled(
        self, step: int, bad: Sequence[str], each: Mapping[str, list[Gap]]
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield one factor for all ranks, or one factor per rank for all tensors."""
        by_rank: dict[int, list[float]] = {}
        for name in bad:
            for one in each[name]:
                by_rank.setdefault(one.rank, []).append(one.factor)
        first = each[bad[0]]
        straight = [one for one in first if one.rest < 10 * self.tolerance]
        if (
            len(straight) == len(first)
            and self._are_close([one.factor for one in first])
            and abs(first[0].factor) > 1e-3
        ):
            factor = first[0].factor
            known = self._known_factor(factor, step)
            others = sum(self._are_close([factor, *(one.factor for one in each[name])]) for name in bad)
            scope = f" ({others}/{len(each)})"
            norms = self.reference.norms()
            if not known and len(norms) > 2 and max(norms) - min(norms) < 1e-5 * max(norms) and len(bad) >= 0.9 * len(each):
                yield "norm", bad[0], {"ratios": f"{factor:.4g}"}
            yield "denominator", bad[0], {"ratio": f"{factor:.4g}", "known": known, "scope": scope}
        alike = all(self._are_close(factors) for factors in by_rank.values())
        if (
            alike
            and len(straight) == len(first)
            and len(bad) >= 0.9 * len(each)
            and abs(first[0].factor) > 1e-3
        ):
            yield "norm", bad[0], {"ratios": series(f"{one.factor:.4g}" for one in first[:8])}

    def _are_close(self, factors: Sequence[float]) -> bool:
        return max(factors) - min(factors) <= 0.2 * self.tolerance * max(map(abs, factors))

    def _known_factor(self, factor: float, step: int) -> str:
        """Return the meaning of a factor: a number of ranks, of passes, or of targets."""
        targets = self.reference.read(step, "targets")
        passes = max(len(one.losses.get(step, ())) for one in self.run.trainings)
        numbers = {
            "world size": self.count,
            "passes": passes,
            "targets": len(targets) if targets is not None else 0,
        }
        for name, count in numbers.items():
            for power, text in (
                (1, f"{count}"),
                (-1, f"1/{count}"),
                (0.5, f"√{count}"),
                (-0.5, f"1/√{count}"),
            ):
                if count > 1 and abs(factor / count**power - 1) < 1e-3:
                    return f" = {text} ({name})"
        return ""

    def _missing_sums(
        self, step: int, first: str, gaps: Sequence[Gap]
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield a group of ranks whose gradients add up to the reference's."""
        whole = (
            assemble([one.gradients.get(step, {}) for one in self.reference.trainings])[first]
            .reshape(-1)
            .double()
        )
        held = dict[int, tuple[Tensor, Tensor]]()
        for (rank, name), match in self.run.matches.items():
            piece = self.run.trainings[rank].gradients.get(step, {}).get(name)
            if match.name == first:
                value = torch.zeros(len(match.places)) if piece is None else piece.value
                held[rank] = match.places, value.double()
        groups = {tuple(sorted(held))} | {
            tuple(sorted(ranks))
            for one in self.run.records for ranks in (*one.peers, *one.exchanges, *one.calls, one.replicas)
        }  # fmt: skip
        for group in sorted(groups, key=len):
            if len(group) < 2 or not set(group) <= set(held):
                continue
            index = held[group[0]][0]
            if not all(torch.equal(held[rank][0], index) for rank in group):
                continue
            total, a = sum((held[rank][1] for rank in group), torch.zeros(len(index)).double()), whole[index]
            for way, count in (("sum", 1), ("mean", len(group))):
                if float((total / count - a).norm()) < 10 * self.tolerance * float(a.norm()):
                    yield (
                        "reduction",
                        first,
                        {"way": PHRASES[f"way.{way}"](), "ranks": format_ranks(list(group))},
                    )

    def _masks(self) -> bool:
        """Whether backward drew random numbers from a state that forward did not draw from."""
        draws = [draw for record in self.run.records for draw, _ in record.draws]
        return bool(
            {one.state for one in draws if one.backward} - {one.state for one in draws if not one.backward}
        )

    def _rounded(self, step: int, first: str, each: Mapping[str, list[Gap]], bad: Sequence[str]) -> str:
        """Return the 16-bit type to which gradients look rounded, or ""."""
        for (rank, name), match in self.run.matches.items():
            piece = self.run.trainings[rank].gradients[step].get(name)
            if match.name == first and piece is not None and piece.value.any():
                for dtype in (torch.bfloat16, torch.float16):
                    if torch.equal(piece.value, piece.value.to(dtype).float()):
                        return str(dtype).removeprefix("torch.")
        small = max(one.gap for name in bad for one in each[name]) < _SIXTEEN_BITS
        return "bfloat16" if small and all(abs(one.factor - 1) < 0.01 for one in each[first]) else ""

    def _forward(self, step: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the first module whose output differs, if outputs can be compared."""
        records = self.run.records
        ours = [
            {(public_name(k[2]), k[3]): v for k, v in one.seen.items() if k[:2] == (step, "output")}
            for one in records
        ]
        for key, seen in self.reference.records[0].seen.items():
            if key[:2] != (step, "output"):
                continue
            name = public_name(key[2])
            many = [one[name, key[3]] for one in ours if (name, key[3]) in one]
            ways = set(matching_ways(seen, many, 1e-7)) if len(many) == self.count else {"alike"}
            if ways & {"alike", "parts"}:
                if (
                    "alike" not in ways
                    and len({one.local for one in many}) == 1
                    and many[0].local == seen.local
                ):
                    yield "order", name, {}
                continue
            yield ("reduction.forward" if "sum" in ways else "forward"), name, {}
            return

    def _line(self, name: str, step: int) -> str:
        """Return the line that called the module of ``name``, or else the line of backward."""
        module = name
        while module and module not in self.lines:
            module = module.rpartition(".")[0]
        return self.lines.get(module, "") or self.run.records[0].steps[step - 1].place

    # After backward.

    def _judge_update(self, step: int) -> tuple[Finding, str, str] | None:
        """Compare the ranks' copies after a step, and the size of the update with the reference's."""
        before, after = (
            assemble([one.weights.get(at, {}) for one in self.reference.trainings]) for at in (step - 1, step)
        )
        last = max(self.run.trainings[0].weights)
        copies = dict[tuple[str, bytes], tuple[int, Tensor]]()
        line = self.run.records[0].steps[step - 1].line
        for (rank, name), match in self.run.matches.items():
            weights = self.run.trainings[rank].weights
            if step in weights and match.name in after:
                ours = weights[step][name].value - weights[step - 1][name].value
                theirs = (after[match.name] - before[match.name]).reshape(-1)[match.places]
                ratio = float(ours.norm()) / max(float(theirs.norm()), 1e-30)
                weight = weights[step][name].value.norm()
                if theirs.norm() > 1e-5 * weight and abs(ratio - 1) > 0.05:
                    facts = {"step": step, "name": match.name, "ratio": f"{ratio:.3g}"}
                    return CAUSES["update"](f"{match.name}, {line}", **facts), "update", match.name
            at = step if step == 1 else last
            value = weights[at][name].value
            other, copy = copies.setdefault((match.name, match.places.numpy().tobytes()), (rank, value))
            if float((copy - value).norm()) > 1e-5 * max(float(copy.norm()), 1e-12):
                facts = {"step": at, "name": match.name, "ranks": format_ranks([other, rank])}
                return CAUSES["drift"](f"{match.name}, {line}", **facts), "drift", match.name
        return None

    def _find_printed_norm(self) -> tuple[Finding, str, str, int] | None:
        pairs = zip(
            self.run.trainings[0].printed_norms(), self.reference.trainings[0].printed_norms(), strict=False
        )
        for step, ((here, text), (there, other)) in enumerate(pairs, 1):
            digits = max(len(one.partition(".")[2].partition("e")[0]) for one in (text, other))
            if abs(here - there) > 1e-3 * abs(there) + 10.0**-digits and there:
                facts = {"step": step, "here": text, "there": other, "ratio": f"{here / there:.3g}"}
                return CAUSES["norm.printed"](self.run.records[0].steps[0].line, **facts), "norm", "", step
        return None

    def _find_later(self) -> tuple[Finding, str, str, int] | None:
        for step in range(3, min(self.run.steps, self.reference.steps) + 1):
            here, there = self.run.squares(step), self.reference.squares(step)
            whole = sum(there.values())
            for name in there:
                gap = abs(math.sqrt(here.get(name, 0.0)) - math.sqrt(there[name]))
                if there[name] > 1e-4 * whole and gap > 100 * self.tolerance * math.sqrt(there[name]):
                    ratio = math.sqrt(here.get(name, 0.0) / there[name])
                    where = f"{name}, {self._line(name, step)}"
                    facts = {"before": step - 1, "step": step, "name": name, "ratio": f"{ratio:.3g}"}
                    return CAUSES["later"](where, **facts), "later", name, step
        return None


def _layer(name: str) -> str:
    """Return the layer of a parameter: its name up to the first number, or else its module."""
    numbered = re.match(r".*?\.\d+(?=\.)", name)
    return numbered[0] if numbered else name.rpartition(".")[0]
