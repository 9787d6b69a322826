"""Published figures beside the model's predictions and their errors: ``python -m labkit.cost.published``.

A figure that a number of the model was fitted to says so; the others check it. Each error stands beside that of
the null model, perfect scaling, in which only computing takes time.
"""

from __future__ import annotations

from dataclasses import dataclass

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

_DDP = "PyTorch's DDP benchmark, V100"
_DLPERF = "DLPerf, V100"
_HF = "Hugging Face's multi-GPU guide, two TITAN RTX"


@dataclass(frozen=True)
class Figure:
    """A published step and its measured ``seconds``; the number ``fitted`` was fitted to it. ``rows`` is per GPU."""

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
    def predicted(self) -> float:
        """The model's seconds for it."""
        step = data_parallel_step if self.method == "data_parallel" else ddp_step
        return step(self.work, self.hardware, self.rows * self.gpus, self.gpus).seconds

    @property
    def error(self) -> float:
        """The error of the model, as a share of the measured seconds."""
        return self.predicted / self.seconds - 1

    @property
    def null_error(self) -> float:
        """The error of perfect scaling."""
        return perfect_step(self.work, self.rows * self.gpus, self.gpus).seconds / self.seconds - 1


FIGURES = (
    *(
        Figure(_DDP, "ResNet-50", RESNET50, PROFILES["v100-nvlink"], "ddp", gpus, 32, seconds, fitted)
        for gpus, seconds, fitted in (
            (1, 0.100, "ddp_overhead"), (2, 0.103, "ddp_contention"), (4, 0.103, "ddp_contention"),
            (8, 0.104, "ddp_contention"), (16, 0.104, "ddp_contention"),
        )
    ),
    *(
        Figure(_DDP, what, Workload(alone / 32, 4 * numbers), PROFILES["v100-nvlink"], "ddp", gpus, 32, seconds)
        for what, alone, numbers, measured in (
            ("ResNet-101", 0.162, 44_549_160, (0.171, 0.176, 0.176, 0.179, 0.179)),
            ("ResNeXt-50", 0.145, 25_028_904, (0.147, 0.153, 0.153, 0.157, 0.157)),
            ("ResNeXt-101", 0.415, 88_791_336, (0.425, 0.438, 0.439, 0.447, 0.450)),
        )
        for gpus, seconds in zip((1, 2, 4, 8, 16), measured, strict=True)
    ),
    *(
        Figure(_DLPERF, "BERT-base", BERT, PROFILES["v100-dlperf"], "ddp", gpus, 32, 32 * gpus / speed, fitted)
        for gpus, speed, fitted in (
            (4, 457.7, ""), (8, 921.3, ""), (16, 1499.4, "network_bandwidth"), (32, 2885.8, ""),
        )
    ),
    Figure(
        _HF, "GPT-2, NVLink", GPT2, PROFILES["titan-nvlink"], "ddp", 2, 4, 101.90 / 200, "seconds_per_row"
    ),
    Figure(_HF, "GPT-2, NVLink", GPT2, PROFILES["titan-nvlink"], "data_parallel", 2, 4, 110.59 / 200),
    Figure(_HF, "GPT-2, PCIe", GPT2, PROFILES["titan-pcie"], "ddp", 2, 4, 131.44 / 200, "reduce_bandwidth"),
)  # fmt: skip


def mean_errors(figures: tuple[Figure, ...]) -> tuple[float, float]:
    """The mean absolute error of the model and of the null model, as shares."""
    count = len(figures)
    return sum(abs(f.error) for f in figures) / count, sum(abs(f.null_error) for f in figures) / count


def report() -> str:
    """Every figure with both errors, and their means over those that nothing was fitted to."""
    lines = [f"{'':<46} {'GPUs':>4} {'measured':>9} {'model':>9} {'error':>7} {'null':>7}"]
    for f in FIGURES:
        method = "DataParallel" if f.method == "data_parallel" else "DDP"
        what = f"{f.what}, {method} ({f.source.split(',')[0]})"
        note = f"  fitted: {f.fitted}" if f.fitted else ""
        lines.append(
            f"{what[:46]:<46} {f.gpus:>4} {f.seconds * 1e3:>6.1f} ms {f.predicted * 1e3:>6.1f} ms "
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
