"""Answers to lesson 18, right and wrong, with a piece of the hint that each wrong one gets."""

from dataclasses import replace

import labkit

BEST = labkit.Plan(dp=4, tp=4, pp=4, stage=1, micro=1, many=128, sp=True)

RIGHT = {
    "18.allocated": [lambda parameters, ranks: parameters * (4 + 12 / ranks)],
    "18.mfu": [lambda parameters, tokens, gpus: 6 * parameters * tokens / (gpus * 989e12),
               lambda parameters, tokens, gpus: 3 * 2 * parameters * tokens / gpus / 989.5e12],
    "18.beat": [labkit.Plan(dp=64, stage=3, micro=1, many=8, recompute=True),
                labkit.Plan(dp=32, tp=2, stage=3, micro=2, many=8, recompute=True, sp="gathered")],
}  # fmt: skip
WRONG = {
    "18.allocated": [
        (lambda parameters, ranks: 16 * parameters, "which of the three is sharded"),
        (lambda parameters, ranks: 16 * parameters / ranks, "that is stage 3"),
        (lambda parameters, ranks: parameters * (2 + 14 / ranks), "that is stage 2"),
        (lambda parameters, ranks: 4 * parameters, "sharded is not gone"),
        (lambda parameters, ranks: parameters * (2 + 12 / ranks), "are the gradients gone"),
        (lambda parameters, ranks: parameters * (8 + 8 / ranks), "in float32"),
        (lambda parameters, ranks: 4 + 12 / ranks, "the bytes of one parameter"),
        (lambda parameters, ranks: parameters * (4 + 12 / ranks) / 1e9, "is your number in GB"),
        (lambda parameters, ranks: parameters * (4 * ranks + 12), "add up 2, 2"),
    ],
    "18.mfu": [
        (lambda parameters, tokens, gpus: 2 * parameters * tokens / 1979e12, "and the peak"),
        (lambda parameters, tokens, gpus: 6 * parameters * tokens / 989e12, "and the peak"),
        (lambda parameters, tokens, gpus: 2 * parameters * tokens / (gpus * 1979e12), "two of every four"),
        (lambda parameters, tokens, gpus: 6 * parameters * tokens / (gpus * 1979e12), "two of every four"),
        (lambda parameters, tokens, gpus: 2 * parameters * tokens / (gpus * 989e12), "2 are the forward pass"),
        (lambda parameters, tokens, gpus: 4 * parameters * tokens / (gpus * 989e12), "with 4 operations"),
        (lambda parameters, tokens, gpus: 3 * parameters * tokens / (gpus * 989e12), "a multiplication and an"),
        (lambda parameters, tokens, gpus: 8 * parameters * tokens / (gpus * 989e12),
         "which recomputation needs"),
        (lambda parameters, tokens, gpus: 600 * parameters * tokens / (gpus * 989e12), "0.4 and not 40"),
        (lambda parameters, tokens, gpus: 0.9, "you have 90.0%"),
    ],
    "18.beat": [
        (replace(BEST, dp=8), "there are 64 GPUs"), (replace(BEST, many=1), "a step has 512"),
        (labkit.Plan(dp=4, tp=16, stage=3, micro=1, many=128), "keep it within one machine"),
        (labkit.Plan(dp=4, pp=16, stage=1, micro=16, many=8), "would never all work"),
        (labkit.Plan(dp=1, pp=64, stage=0, micro=1, many=512), "cannot be divided"),
        (labkit.Plan(dp=4, tp=4, pp=4, stage=3, micro=1, many=128), "ZeRO can be 0 or 1"),
        (labkit.Plan(dp=64, stage=3, micro=8, many=1), "how many sequences are in a micro-batch"),
        (labkit.Plan(dp=64, stage=0, micro=1, many=8, recompute=True), "which stage of ZeRO shards it"),
        (labkit.Plan(dp=1, tp=8, pp=8, stage=0, micro=1, many=512, sp=True), "waits for all-reduces"),
        (replace(BEST, sp=False), "sp=True"),
        (labkit.Plan(dp=64, stage=3, micro=1, many=8), "although a micro-batch has a single sequence"),
        ("dp64", "this asks for a plan"),
        (labkit.Plan(dp=8, tp=8, stage=3, micro=1, many=64, sp=True), "for each of 64 micro-batches"),
    ],
}  # fmt: skip
