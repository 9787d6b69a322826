"""Workloads of published measurements, as a step of one GPU takes them."""

from __future__ import annotations

from .step import Workload

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
