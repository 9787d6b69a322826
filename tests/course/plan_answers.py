"""Answers to lesson 18, right and wrong, with a piece of the hint that each wrong one gets."""

from dataclasses import replace

import labkit

BEST = labkit.Plan(dp=16, tp=4, pp=1, stage=3, micro=1, many=32)

RIGHT = {
    "18.allocated": [lambda parameters, ranks: parameters * (4 + 12 / ranks)],
    "18.mfu": [lambda tokens, gpus, flops: tokens * flops / (gpus * 989e12)],
    "18.beat": [BEST, labkit.Plan(dp=64, stage=3, micro=2, many=4, recompute=True)],
}
WRONG = {
    "18.allocated": [
        (lambda parameters, ranks: 16 * parameters, "which of the three is sharded"),
        (lambda parameters, ranks: 16 * parameters / ranks, "that is stage 3"),
        (lambda parameters, ranks: parameters * (2 + 14 / ranks), "that is stage 2"),
        (lambda parameters, ranks: 4 * parameters, "sharded is not gone"),
        (lambda parameters, ranks: parameters * (2 + 12 / ranks), "are the gradients gone"),
        (lambda parameters, ranks: parameters * (8 + 8 / ranks), "in float32"),
        (lambda parameters, ranks: 1.0, "add up 2, 2"),
    ],
    "18.mfu": [
        (lambda tokens, gpus, flops: tokens * flops / (gpus * 1979e12), "half zero"),
        (lambda tokens, gpus, flops: tokens * flops / 989e12, "and the peak"),
        (lambda tokens, gpus, flops: 100 * tokens * flops / (gpus * 989e12), "0.4 and not 40"),
        (lambda tokens, gpus, flops: 0.5, "you have 50.0%"),
    ],
    "18.beat": [
        (replace(BEST, dp=8), "there are 64 GPUs"),
        (replace(BEST, many=1), "a step has 512"),
        (labkit.Plan(dp=4, tp=16, stage=3, micro=1, many=128), "that cannot be"),
        (labkit.Plan(dp=64, stage=3, micro=8, many=1), "what makes activations smaller"),
        (labkit.Plan(dp=64, stage=0, micro=1, many=8, recompute=True), "which stage shards it"),
        (labkit.Plan(dp=1, tp=8, pp=8, stage=0, micro=1, many=512), "waits for sums"),
        ("dp64", "a plan"),
    ],
}
