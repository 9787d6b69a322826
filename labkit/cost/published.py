"""Published figures beside the model's predictions and errors: ``python -m labkit.cost.published``.

A figure that a number of the model was fitted to says so; the others check the model. Each error stands beside that of
the null model, perfect scaling, in which only computing takes time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.files import rows_beside
from .hardware import PROFILES, Hardware
from .step import Workload, data_parallel_step, ddp_step, perfect_step

# Seconds per row where a single GPU without DDP was measured: step seconds over 32 rows, or 1 over rows per second.
RESNET50 = Workload(0.097 / 32, 25_557_032 * 4, input_bytes=3 * 224 * 224 * 4, output_bytes=1000 * 4)
BERT = Workload(1 / 119.6, 109_500_000 * 4, input_bytes=128 * 8, output_bytes=2 * 4)
# Fitted to DDP with NVLink. The logits, 1,024 positions of 50,257 words, are gathered; no gradient goes back to them.
GPT2 = Workload(
    0.479 / 4, 124_439_808 * 4, input_bytes=1024 * 8, output_bytes=1024 * 50257 * 4, gradient_bytes=0
)
# GPT-2's gradients, in bytes, in the order in which backward has them: of the last layer norm, of twelve blocks (second
# and first layer of the MLP, norm, attention's output, attention, norm), of positions and of words.
_BLOCK = (768, 2_359_296, 3072, 2_359_296, 768, 768, 768, 589_824, 2304, 1_769_472, 768, 768)
GPT2_GRADIENTS = tuple(4 * size for size in (768, 768, *_BLOCK * 12, 786_432, 38_597_376))


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
