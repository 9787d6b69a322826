"""Published figures beside the model's predictions and errors.

A figure that a number of the model was fitted to says so; the others check the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.files import rows_beside
from .hardware import PROFILES, Hardware
from .step import Workload, data_parallel_step, ddp_step

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
