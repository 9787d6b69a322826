"""Compare a layout's run with the reference's, and find the first difference and its likely cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.base.language import say, series
from labkit_diagnose.findings import list_some, read_findings
from labkit_diagnose.result import Finding

from ..calls.faults import format_ranks
from ..diagnosis.failures import describe_error, raising_line
from ..diagnosis.one_gpu import matching_ways
from .layouts import RunLayout
from .matching import Match, assemble
from .recording import WHOLE_STEPS, LossCall, RankTraining, public_name

CAUSES, PHRASES, _ = read_findings(
    *(Path(__file__).with_name(f"{name}.txt") for name in ("topics", "causes"))
)
_EPS = torch.finfo(torch.float32).eps
# Relative differences: the least that counts in float32 (rounding stays near 1e-6, bugs are above 5e-3), factors of it
# for the second and for later steps, and what rounding to 16 bits stays below.
_LEAST, _SECOND, _LATER, _SIXTEEN_BITS = 1e-4, 10.0, 100.0, 0.04
_ROWS = {"targets": "目标", "inputs": "输入"}
# A difference: its cause (a key of ``causes.txt``), tensor and facts.
_Difference = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class ParityLayout:
    """A layout's training, compared with that of the first layout.

    name        "2 ranks --tp 2"; ``ranks`` and ``arguments`` are its parts.
    losses      the loss of each step; ``norms`` the norm of the whole gradient, before clipping.
    same        whether everything that was compared is equal up to rounding; None if something was not compared.
    cause       what the difference suggests ("denominator", "reduction", "rows", …), or "".
    finding     the difference in words, or None; ``first`` the first tensor that differs; ``step`` in which step.
    gaps        the relative difference of each gradient in the first step, in backward order.
    tolerance   the largest difference that counts as rounding.
    uncompared  reasons why something could not be compared; ``notes`` what was made equal.
    """

    name: str
    ranks: int
    arguments: tuple[str, ...]
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    same: bool | None = None
    cause: str = ""
    finding: Finding | None = None
    first: str = ""
    step: int = 0
    gaps: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.0
    uncompared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def verdict(self) -> str:
        """Return the verdict, with the cause and the largest difference of a gradient, unless it is not the cause."""
        # The first of those that differ most: rounding, which depends on the processor, doesn't choose among equals.
        most = max(self.gaps.values(), default=0.0)
        worst = next((name for name, gap in self.gaps.items() if not gap < 0.999 * most), "")
        text = {
            None: say(en="not compared", zh="没有比较"),
            True: say(en="the same training", zh="同样的训练") if worst else say(en="reference", zh="参照"),
            False: say(en="not the same training", zh="不是同样的训练") + f" [{self.cause}]",
        }[self.same]
        if not worst or self.same is None or (self.same is False and self.gaps[worst] <= self.tolerance):
            return text
        gap = self.gaps[worst]
        shown = (
            f"{gap:.0e}".replace("e-0", "e-") if gap < 1e-3 else f"{100 * gap:,.{0 if gap > 0.1 else 2}f} %"
        )
        return text + say(
            en=f" (gradients differ by up to {shown}: {worst})", zh=f"（梯度最多相差 {shown}：{worst}）"
        )


@dataclass
class LayoutRun:
    """The trainings of a layout's ranks.

    printed   the output; ``failure`` is a rank and its error; ``source`` the layout that gave the rows, if another.
    """

    layout: RunLayout
    trainings: Sequence[RankTraining]
    printed: str
    failure: tuple[int, BaseException] | None
    source: str

    @property
    def who(self) -> str:
        return str(self.layout)

    @property
    def steps(self) -> int:
        return min(len(one.squares) for one in self.trainings)

    @property
    def trains(self) -> bool:
        return self.failure is None and self.steps > 0

    def wholes(self, step: int, what: str) -> dict[str, Tensor]:
        """Return whole tensors, put together from the ranks' pieces."""
        return assemble([one.kept.get((step, what), {}) for one in self.trainings])

    def squares(self, step: int) -> dict[str, float]:
        """Return each tensor's sum of squares in ``step``, with replicas counted once."""
        found, names = dict[str, float](), {name for one in self.trainings for name in one.squares[step]}
        for name in names:
            held = [one.squares[step][name] for one in self.trainings if name in one.squares[step]]
            found[name] = sum(square for square, _ in held) / (sum(part for _, part in held) or 1.0)
        return found

    def losses(self, reference: LayoutRun) -> list[float]:
        """Return the loss of each step: the mean over targets where torch's functions compute the loss of both runs.

        Otherwise the mean or sum over passes and ranks of what backward begins with, whichever is nearest to the
        reference's in the first step.
        """
        steps = range(1, self.steps + 1)
        if all(one.losses for run in (self, reference) for one in run.trainings if one.scalars):
            return [sum(map(_mean_over_targets, self.calls(step).values())) for step in steps]
        each = [[one.scalars[step] for one in self.trainings if step in one.scalars] for step in steps]
        ways = [
            [over_ranks([over_passes(passes) for passes in some or [[math.nan]]]) for some in each]
            for over_passes in (fmean, sum) for over_ranks in (fmean, sum)
        ]  # fmt: skip
        if self is reference:
            return ways[0]
        there = reference.losses(reference)[0]
        return min(ways, key=lambda losses: abs(losses[0] - there))

    def calls(self, step: int) -> dict[int, list[LossCall]]:
        """Return the calls of loss functions by the term of the loss."""
        found = dict[int, list[LossCall]]()
        for call in (call for one in self.trainings for call in one.losses.get(step, ())):
            found.setdefault(call.term, []).append(call)
        return found

    def rows(self, step: int) -> dict[str, Tensor]:
        """Return the sorted targets and inputs that the ranks read; ranks that read the same rows count once."""
        different = dict[Any, dict[str, Tensor]]()
        for one in self.trainings:
            known = [what for what in _ROWS if (step, what) in one.rows]
            read = {what: torch.cat(one.rows[step, what]).sort()[0] for what in known}
            different[tuple(tuple(values.tolist()) for values in read.values())] = read
        each = {what: [read[what] for read in different.values() if what in read] for what in _ROWS}
        found = {what: torch.cat(some).sort()[0] for what, some in each.items() if some}
        if "inputs" in found:  # a schedule that infers shapes reads some twice
            found["inputs"] = found["inputs"].unique()
        return found

    def reads_rows_of(self, other: LayoutRun) -> bool:
        """Whether both read the same rows in the first step, possibly in another number of batches."""
        here, there = self.rows(1), other.rows(1)
        known = [what for what in here if what in there]
        return bool(known) and all(torch.equal(here[what], there[what]) for what in known)


def _mean_over_targets(calls: Sequence[LossCall]) -> float:
    return sum(call.total for call in calls) / sum(call.counted.count for call in calls)


class RankGap(NamedTuple):
    """The difference of a rank's gradient ``here`` from the reference's, ``there``, at the same places.

    off   the relative size.
    """

    rank: int
    places: Tensor
    here: Tensor
    there: Tensor
    off: float

    @property
    def factor(self) -> float:
        """What ``there`` would have to be multiplied by."""
        return float(self.here.dot(self.there)) / max(float(self.there.dot(self.there)), 1e-30)

    def is_scaled(self, tolerance: float) -> bool:
        """Whether a factor explains the difference."""
        rest = float((self.here - self.factor * self.there).norm())
        return abs(self.factor) >= 1e-3 and rest <= tolerance * float(self.here.norm())


class LayoutComparison:
    """The comparison of ``run`` with ``reference``."""

    def __init__(self, run: LayoutRun, reference: LayoutRun) -> None:
        self.run, self.reference, self.step, self.gaps = run, reference, 1, dict[str, float]()
        self.losses = run.losses(reference) if run.trains and reference.trains else []
        self.norms = [math.sqrt(sum(run.squares(step).values())) for step in range(1, len(self.losses) + 1)]
        seen = [one for training in (*run.trainings, *reference.trainings) for one in training.seen.values()]
        eps = max((one.eps for one in seen), default=0.0)
        counts = [len(one) for one in reference.rows(1).values()]
        self.tolerance = max(_LEAST, 4 * _EPS * math.sqrt(max(counts, default=1)))
        self.tolerance += 4 * eps if eps > 1e-6 else 0.0

    def result(self) -> ParityLayout:
        """Return the first difference, and what else there is to tell of the layout."""
        run, layout = self.run, self.run.layout
        uncompared, notes = self._missing_names() if self.losses else [], list[str]()
        cause, first, facts = next(self._differences(), ("", "", {}))
        finding: Finding | None = None
        if cause.startswith("uncompared"):
            uncompared.append(PHRASES[cause](who=run.who, **facts))
        elif cause:
            if "where" not in facts:
                where = ", ".join(filter(None, [first, self._line(first)]))
                facts |= {"where": where, "step": self.step, "name": first, "loss": self._loss_text()}
            kind = CAUSES[cause]
            finding = kind(facts["where"], **{name: facts[name] for name in kind.facts})
        matches = [match for one in run.trainings for match in one.matches.values()]
        if names := sorted({match.name for match in matches if not match.equal}):
            notes.append(PHRASES["equalized"](who=run.who, names=list_some(names)))
        if run.source:
            notes.append(PHRASES["equalized.rows"](who=run.who, source=run.source))
        sound = None if uncompared or (run is not self.reference and not self.gaps) else True
        return ParityLayout(
            run.who, layout.ranks, layout.arguments, tuple(self.losses), tuple(self.norms),
            False if finding else sound, finding.name if finding else "", finding, first, self.step if finding else 0,
            self.gaps, self.tolerance, tuple(uncompared), tuple(notes),
        )  # fmt: skip

    def _missing_parts(self) -> list[str]:
        """Return the names of tensors of which no rank has a part."""
        held = dict[str, list[Match]]()
        for match in (match for one in self.run.trainings for match in one.matches.values()):
            held.setdefault(match.name, []).append(match)
        wholes = self.reference.wholes(0, "weights")
        sizes = {
            name: len(torch.cat([one.places for one in held[name]]).unique())
            for name in held
            if name in wholes
        }
        return sorted(name for name, size in sizes.items() if size < wholes[name].numel())

    def _missing_names(self) -> list[str]:
        """Return a sentence about parameters that only one of the two runs has."""
        ours, theirs = (set[str]().union(*(one.kept[0, "weights"] for one in run.trainings))
                        for run in (self.run, self.reference))  # fmt: skip
        text = PHRASES["uncompared.names"]
        return [text(who=self.run.who, names=list_some(sorted(ours ^ theirs)))] if ours ^ theirs else []

    def _differences(self) -> Iterator[_Difference]:
        """Compare in the order in which faults arise."""
        if self.run.failure is not None:
            rank, error = self.run.failure
            facts = {"who": f"rank {rank}", "problem": describe_error(error), "where": raising_line(error)}
            yield "fails", "", facts
        if not self.run.steps:
            yield "uncompared.steps", "", {"printed": self.run.printed.strip().split("\n")[-1]}
        if not self.reference.trains:
            yield "uncompared.others", "", {}
        if parts := self._missing_parts():
            yield "uncompared.parts", "", {"names": list_some(parts)}
        if why := self._standstill():
            yield "dead", "", {"why": why, "where": ""}
        steps = 0 if self.run is self.reference else min(self.run.steps, self.reference.steps)
        for step in range(1, min(steps, WHOLE_STEPS) + 1):
            self.step, self.bound = step, self.tolerance * (_SECOND if step > 1 else 1)
            self.each = self._measure_gaps("gradients")
            largest = {name: max(one.off for one in some) for name, some in self.each.items()}
            self.gaps.update({} if self.gaps else largest)
            self.bad = [name for name, gap in largest.items() if not gap <= self.bound]
            differs = self._loss_gap() > self.bound
            if differs or self.bad:
                yield from self._other_rows()
                yield from self._other_masks() if differs else ()
                yield from self._own_counts()
                yield from self._gradient_faults() if self.bad else ()
                yield from self._other_outputs(differs)
                yield from self._other_gradients()
            else:
                yield from self._other_updates()
        for step in range(WHOLE_STEPS + 1, steps + 1):
            self.step, squares, others = step, self.run.squares(step), self.reference.squares(step)
            for name, square in others.items():
                ratio = math.sqrt(squares.get(name, 0.0) / max(square, 1e-30))
                if square > 1e-4 * sum(others.values()) and abs(ratio - 1) > _LATER * self.tolerance:
                    yield "later", name, {"ratio": f"{ratio:.3g}", "before": step - 1}

    def _standstill(self) -> str:
        """Return the reason if this training stands still, else ""."""
        if not all(map(math.isfinite, self.norms)):
            return say(en="its gradients are not finite numbers", zh="梯度不是有限的数")
        if not max(self.norms):
            return say(en="the norm of its gradients is 0", zh="梯度的范数是 0")
        if len(self.losses) > 2 and max(self.losses) - min(self.losses) <= 1e-6 * abs(self.losses[-1]):
            return say(en=f"its loss stays at {self.losses[-1]:.6g}", zh=f"损失一直是 {self.losses[-1]:.6g}")
        return ""

    def _loss_gap(self) -> float:
        there = self.reference.losses(self.reference)[self.step - 1]
        here = self.losses[self.step - 1]
        return 0.0 if math.isnan(there) else abs(here - there) / max(abs(there), 1e-12)

    def _loss_text(self) -> str:
        gap = self._loss_gap()
        if gap <= self.bound:
            return say(en="The loss is equal.", zh="损失相同。")
        return say(en=f"The loss is {100 * gap:.2g} % off.", zh=f"损失相差 {100 * gap:.2g} %。")

    def _line(self, name: str) -> str:
        """Return the line that called the module of ``name``, or else the line of backward."""
        seen = [(key, one.place) for training in self.run.trainings for key, one in training.seen.items()]
        lines = {public_name(key[2]): place for key, place in seen if key[:2] == (1, "output")}
        while name and name not in lines:
            name = name.rpartition(".")[0]
        return lines.get(name, "") or self.run.trainings[0].steps[self.step - 1].place

    def _measure_gaps(self, what: str) -> dict[str, list[RankGap]]:
        """Return the gaps of all gradients by the reference's names, in backward order."""
        wholes = self.reference.wholes(self.step, what)
        squares = sum(float(whole.double().square().sum()) for whole in wholes.values())
        usual = math.sqrt(squares / max(sum(map(torch.numel, wholes.values())), 1))
        found = dict[str, list[RankGap]]()
        for training in self.run.trainings:
            for name, piece in training.kept.get((self.step, what), {}).items():
                if name in wholes:
                    here, there = piece.value.double(), wholes[name].reshape(-1)[piece.places].double()
                    # Judge a tensor with a tiny gradient against the usual size of a number.
                    size = max(float(there.norm()), 0.01 * usual * math.sqrt(len(there)), 1e-30)
                    off = float((here - there).norm()) / size
                    found.setdefault(name, []).append(RankGap(training.rank, piece.places, here, there, off))
        seen = self.reference.trainings[0].seen
        outputs = [public_name(key[2]) for key in seen if key[:2] == (1, "output")]
        called = {name: at for at, name in reversed([*enumerate(outputs)])}
        order = {name: (called.get(name.rpartition(".")[0], -1), at) for at, name in enumerate(wholes)}
        return {name: found[name] for name in sorted(found, key=order.__getitem__, reverse=True)}

    def _are_close(self, factors: Sequence[float]) -> bool:
        return max(factors) - min(factors) <= 0.2 * self.tolerance * max(map(abs, factors))

    # What differs in forward.

    def _other_rows(self) -> Iterator[_Difference]:
        here, there = self.run.rows(self.step), self.reference.rows(self.step)
        for what in [name for name in _ROWS if name in here and name in there]:
            ours, theirs = here[what], there[what]
            facts = {"here": len(ours), "there": len(theirs), "what": say(en=what, zh=_ROWS[what])}
            more, unique = len(ours) / len(theirs), len(ours.unique()) - len(theirs.unique())
            if more > 1 and (unique > 0 or more.is_integer()):
                yield "uncompared.rows", "", facts
            elif len(ours) != len(theirs) or not torch.allclose(ours, theirs):
                yield "rows", "", facts

    def _other_masks(self) -> Iterator[_Difference]:
        draws = [draw for one in self.run.trainings for draw, _ in one.draws]
        if any(draw.step == self.step and not draw.shape for draw in draws):
            yield "uncompared.random", "", {}

    def _own_counts(self) -> Iterator[_Difference]:
        for calls in self.run.calls(self.step).values():
            counts = [call.counted.count for call in calls]
            weights = [call.counted.weight or 0.0 for call in calls]
            if 0 < 1.001 * min(weights) < max(weights):
                shares = [count * weight for count, weight in zip(counts, weights, strict=True)]
                lowest, highest = (one * sum(counts) / sum(shares) for one in (min(weights), max(weights)))
                cause = "denominator.counts" if self._are_close(shares) else "denominator.scales"
                text = series(f"{one:g}" for one in counts[:8])
                yield cause, "", {"lowest": lowest, "highest": highest, "counts": text}

    def _other_outputs(self, loss_differs: bool) -> Iterator[_Difference]:
        """Yield the first module whose output differs; if none does, outputs and targets are in another order.

        If the loss is equal, look at single numbers only, which may be further terms of the loss.
        """
        ours = [{(*key[:2], public_name(key[2]), key[3]): seen for key, seen in one.seen.items()}
                for one in self.run.trainings]  # fmt: skip
        last = ""
        for key, seen in self.reference.trainings[0].seen.items():
            name = public_name(key[2])
            if key[:2] != (self.step, "output") or not (loss_differs or seen.size == 1):
                continue
            many = [one[known] for one in ours if (known := (*key[:2], name, key[3])) in one]
            if len(many) == len(ours):
                ways, last = set(matching_ways(seen, many, self.tolerance**1.7)), name
                if not ways & {"alike", "parts"} and not (seen.size == 1 and "mean" in ways):
                    yield "reduction.forward" if "sum" in ways else "forward", name, {}
        if loss_differs:
            yield "order", last, {}

    # What differs in backward.

    def _gradient_faults(self) -> Iterator[_Difference]:
        """Yield a factor of all ranks or factors by rank; or else a missing sum, or a missing gradient."""
        name, first = self.bad[0], self.each[self.bad[0]]
        factors, by_rank = [one.factor for one in first], dict[int, list[float]]()
        for one in (gap for name in self.bad for gap in self.each[name]):
            by_rank.setdefault(one.rank, []).append(one.factor)
        if all(one.is_scaled(10 * self.tolerance) for one in first):
            everywhere = len(self.bad) >= 0.9 * len(self.each) and all(map(self._are_close, by_rank.values()))
            known, alike = self._known_factor(factors[0]), self._are_close(factors)
            arrived = [one.off for some in self._measure_gaps("arrived").values() for one in some]
            # What backward gives is equal: the gradients are scaled afterwards, as in clipping by hand.
            scaled_later = max(arrived, default=1.0) <= self.bound and not known
            if everywhere and (scaled_later or not alike):
                yield "norm", name, {"ratios": series(f"{one:.4g}" for one in factors[:8])}
            if alike:
                others = ([factors[0], *(one.factor for one in self.each[name])] for name in self.bad)
                same, every = sum(map(self._are_close, others)), len(self.each)
                text = say(
                    en=f"are {same} of all {every} gradients", zh=f"{every} 个梯度里有 {same} 个是这样"
                )
                if same == every:
                    text = say(en=f"are all {every} gradients", zh=f"{every} 个梯度都是这样")
                yield "denominator", name, {"ratio": f"{factors[0]:.4g}", "known": known, "same": text}
        held = [one for one in first if torch.equal(one.places, first[0].places)]
        terms = {one.here.numpy().tobytes(): one for one in held}  # copies count once
        total, wanted = sum(one.here for one in terms.values()), first[0].there
        ranks = format_ranks([one.rank for one in terms.values()])
        for way, by in ((say(en="sum", zh="求和"), 1), (say(en="mean", zh="求平均"), len(terms))):
            off = float((total / by - wanted).norm())
            if len(terms) > 1 and off < 10 * self.tolerance * float(wanted.norm()):
                yield "reduction", name, {"way": way, "ranks": ranks}
        if not any(one.here.any() for one in first):
            yield "cut", name, {"there": sum(float(one.there.norm()) for one in first)}

    def _known_factor(self, factor: float) -> str:
        """Return the meaning of a factor: a number of ranks, of backward passes, or of targets."""
        passes = max(len(one.scalars.get(self.step, ())) for one in self.run.trainings)
        targets = len(self.reference.rows(self.step).get("targets", ()))
        for number, en, zh in (
            (len(self.run.trainings), "ranks", "rank 数"), (passes, "backward passes", "反向传播的次数"),
            (targets, "targets", "目标的个数"),
        ):  # fmt: skip
            if number > 1 and any(abs(factor / size - 1) < 1e-3 for size in (number, 1 / number)):
                return say(en=f" (there are {number} {en})", zh=f"（{zh}正好是 {number}）")
        return ""

    def _other_gradients(self) -> Iterator[_Difference]:
        first, gaps = self.bad[0], self.each[self.bad[0]]
        draws = [draw for one in self.run.trainings for draw, _ in one.draws]
        if {one.state for one in draws if one.backward} - {one.state for one in draws if not one.backward}:
            yield "random", first, {}
        off, values = 100 * max(one.off for one in gaps), [one.here.float() for one in gaps]
        small = max(one.off for name in self.bad for one in self.each[name]) < _SIXTEEN_BITS
        for dtype in (torch.bfloat16, torch.float16):
            cast, there = (
                all(torch.equal(one, one.to(dtype).to(one.dtype)) for one in some)
                for some in (values, [one.there for one in gaps])
            )
            if (cast and not there) or (small and all(abs(one.factor - 1) < 0.01 for one in gaps)):
                yield "rounding", first, {"off": off, "dtype": str(dtype).removeprefix("torch.")}
        yield "backward", first, {"off": off, "ratios": series(f"{one.factor:.3g}" for one in gaps[:8])}

    # What differs after backward.

    def _other_updates(self) -> Iterator[_Difference]:
        """Compare the ranks' copies after a step and at the end, and the size of the update with the reference's."""
        before, after = (self.reference.wholes(self.step - back, "weights") for back in (1, 0))
        squares, copies = self.reference.squares(self.step), dict[Any, tuple[int, Tensor]]()
        for one in self.run.trainings:
            start, weights, latest = (one.kept[at, "weights"] for at in (self.step - 1, self.step, -1))
            for name, (_, places, value) in weights.items():
                if squares.get(name, 0.0) < 1e-8 * sum(squares.values()):
                    continue  # noise that Adam enlarges
                there = (after[name] - before[name]).reshape(-1)[places]
                ratio = float((value - start[name].value).norm()) / max(float(there.norm()), 1e-30)
                if there.norm() > 1e-5 * start[name].value.norm() and abs(ratio - 1) > 0.05:
                    yield "update", name, {"ratio": f"{ratio:.3g}"}
                for at, mine in enumerate((value, latest[name].value)):
                    other, theirs = copies.setdefault((name, at, places.numpy().tobytes()), (one.rank, mine))
                    if torch.equal(mine, theirs):
                        continue
                    if float((mine - theirs).norm()) > 1e-5 * max(float(theirs.norm()), 1e-12):
                        yield "drift", name, {"ranks": format_ranks([other, one.rank])}
