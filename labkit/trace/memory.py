"""The memory in use on ranks' GPUs over time."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.display import Drawn
from ..base.language import say
from ..base.units import bytes_text

# The label of a sample taken after an optimizer's step.
STEP = "optimizer.step()"


@dataclass(frozen=True)
class MemorySample:
    """The bytes in use on a GPU at one moment.

    rank     whose it is; None where no ranks run.
    device   the rank's GPU: ``"cuda:1"``.
    at       seconds on the rank's clock, or as in the events.
    nbytes   the bytes in use now.
    peak     the most that were in use since the sample before; at least ``nbytes``.
    label    the work at that moment: a collective's kind, a module's name. May be "".
    line     the user's line that did it: ``"train.py:41"``. May be "".
    """

    rank: int | None
    device: str
    at: float
    nbytes: int
    peak: int
    label: str = ""
    line: str = ""


@dataclass(frozen=True, repr=False)
class MemoryTimeline(Drawn):
    """Memory in use on each rank's GPU over its clock, or on each GPU. In a notebook it shows itself as a picture."""

    samples: tuple[MemorySample, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks with samples."""
        return tuple(sorted({found.rank for found in self.samples if found.rank is not None}))

    @property
    def lanes(self) -> dict[str, int | str]:
        """The ranks, or else the GPUs, with samples: names, and keys for :meth:`lane_samples`."""
        devices = dict.fromkeys(found.device for found in self.samples)
        return {f"rank {rank}": rank for rank in self.ranks} or {device: device for device in devices}

    @property
    def steps(self) -> tuple[float, ...]:
        """The times of optimizer steps, on the clock of the first rank."""
        found = (one for lane in self.lanes.values() if (one := self.lane_samples(lane)))
        return tuple(one.at for one in next(found, ()) if one.label == STEP)

    def lane_samples(self, lane: int | str) -> tuple[MemorySample, ...]:
        """Return the samples of a rank, by its clock, or of a GPU."""
        found = (one for one in self.samples if lane == (one.rank if isinstance(lane, int) else one.device))
        return tuple(sorted(found, key=lambda one: one.at))

    of = lane_samples  # the former name

    def peak(self, lane: int | str) -> int:
        """Return the peak bytes of a rank or GPU; 0 without samples."""
        return max((found.peak for found in self.lane_samples(lane)), default=0)

    def __repr__(self) -> str:
        """Return a line for each rank or GPU: its peak, the step, the work and the user's line."""
        lines = []
        for name, lane in self.lanes.items():
            top = max(self.lane_samples(lane), key=lambda one: one.peak)
            step = sum(at < top.at for at in self.steps) + 1
            words = ([say(en=f"step {step}", zh=f"第 {step} 步")] if self.steps else []) + [
                top.label,
                top.line,
            ]
            listed = say(en=", ", zh="，").join(filter(None, words)) if top.peak else ""
            lines.append(f"{name:<8} {bytes_text(top.peak):>9}  {listed}".rstrip())
        return "\n".join(lines)
