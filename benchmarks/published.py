"""Published steps of DataParallel and DDP beside the model's predictions: ``python -m benchmarks.published``.

A figure that a number of the model was fitted to says so; the others check the model. Each error stands beside that of
the null model, perfect scaling, in which only computing takes time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labkit.base.files import rows_beside
from labkit.cost.hardware import PROFILES, Hardware
from labkit.cost.published import BERT, GPT2, RESNET50
from labkit.cost.step import Workload, data_parallel_step, ddp_step, perfect_step


@dataclass(frozen=True)
class Figure:
    """A published step and its measured ``seconds``; ``fitted``: the number of the model fitted to it. ``rows`` per
    GPU.
    """

    source: str
    what: str
    work: Workload
    hardware: Hardware
    method: str
    gpus: int
    rows: int
    seconds: float
    fitted: str = ""

    @property
    def predicted_seconds(self) -> float:
        """The model's seconds."""
        step = data_parallel_step if self.method == "data_parallel" else ddp_step
        return step(self.work, self.hardware, self.rows * self.gpus, self.gpus).seconds

    @property
    def error(self) -> float:
        """The error of the model, as a share of the measured seconds."""
        return self.predicted_seconds / self.seconds - 1

    @property
    def null_error(self) -> float:
        """The error of perfect scaling."""
        return perfect_step(self.work, self.rows * self.gpus, self.gpus).seconds / self.seconds - 1


def _figures() -> Iterator[Figure]:
    works = {"ResNet-50": RESNET50, "BERT-base": BERT, "GPT-2, NVLink": GPT2, "GPT-2, PCIe": GPT2}
    for source, what, of, links, method, gpus, rows, measured, fitted in rows_beside(__file__):
        seconds, _, parts = measured.partition(" / ")
        alone, _, numbers = of.partition(" s, ")
        work = works[what] if not of else Workload(float(alone) / int(rows), 4 * int(numbers))
        found = float(seconds) / float(parts or 1)
        yield Figure(source, what, work, PROFILES[links], method, int(gpus), int(rows), found, fitted)


# From published.txt, which gives a workload that is not above by a step on one GPU and its parameters.
FIGURES = tuple(_figures())


def mean_errors(figures: tuple[Figure, ...]) -> tuple[float, float]:
    """Return the mean absolute errors of the model and of the null model, as shares."""
    count = len(figures)
    return sum(abs(f.error) for f in figures) / count, sum(abs(f.null_error) for f in figures) / count


def report() -> str:
    """Return every figure with both errors, and the mean errors of the figures that nothing was fitted to."""
    lines = [f"{'':<46} {'GPUs':>4} {'measured':>9} {'model':>9} {'error':>7} {'null':>7}"]
    for f in FIGURES:
        method = "DataParallel" if f.method == "data_parallel" else "DDP"
        what = f"{f.what}, {method} ({f.source.split(',')[0]})"
        note = f"  fitted: {f.fitted}" if f.fitted else ""
        lines.append(
            f"{what[:46]:<46} {f.gpus:>4} {f.seconds * 1e3:>6.1f} ms {f.predicted_seconds * 1e3:>6.1f} ms "
            f"{f.error:>+7.1%} {f.null_error:>+7.1%}{note}"
        )
    kept = tuple(f for f in FIGURES if not f.fitted)
    error, null = mean_errors(kept)
    lines.append(
        f"mean absolute error on the {len(kept)} figures nothing was fitted to: model {error:.1%}, null {null:.1%}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
