"""Forecast the seconds and bytes of a training step of a transformer, from sizes alone, for each parallel plan.

The model, and what it leaves out:

* A product of matrices takes its operations over a share of the peak that falls where a side is short. Attention has
  its own share; the rest moves bytes through the GPU's memory. A layer takes the longer of this work and the time in
  which Python starts its kernels.
* Tensor parallelism waits for two all-reduces a layer in each direction. A ring's time is its bytes over the bus
  bandwidth plus a latency. The network's bandwidth falls with the number of machines.
* A pipeline of p stages is idle for p - 1 micro-batches; the slowest stage sets the pace.
* Sums of gradients and gathers of sharded weights overlap with computing and slow it; only the excess adds time.
* Tokens are sent to experts evenly, and nothing overlaps with it. The adapters of LoRA take no time.
* Left out: loading, checkpoints, stragglers, thermal throttling, mixed GPUs, float8, context parallelism.

:mod:`.memory` has the model of memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ..base.language import say
from ..base.units import bytes_text
from .hardware import (
    Accelerator,
    accelerator,
    all_reduce_seconds,
    all_to_all_seconds,
    gather_seconds,
    send_seconds,
)
from .memory import KINDS as KINDS
from .memory import memory as memory
from .settings import SOFTWARE, Plan, Software, check_plan
from .sizes import Sizes

# Fitted to tools/plans/fitted.csv (docs/plan.md).
HALF_SIDE = 160  # a side of a product at which half of its share is lost
LAYER_BYTES = 51.1  # moved in forward for each number of a layer's input
SCORE_BYTES = 13  # and of the scores, where attention is not one kernel
CONTENTION = 0.166  # share by which communication beside computing slows it
JITTER = 0.00479  # growth of Python's part with tp, whose ranks wait for the slowest
SHARPNESS = 3.98  # of the maximum of two times
# Measured over forecast peaks, of the seven rows of fitted.csv that have one: the upper end of their 99 % prediction
# interval (Student's t, of logarithms), and the lowest.
PEAK_ABOVE, PEAK_BELOW = 1.288, 0.905
# Five products of scores in backward, two in forward (FlashAttention-2, arXiv 2307.08691); four if it saves the scores.
FLASH_BACKWARD, BACKWARD = 2.5, 2.0
# Adam's traffic for each parameter: 4 bytes of gradient, 8 each of weight and two moments in 32 bits.
STEP_BYTES = 28.0
# Without flash attention, products of heads whose rows do not start at multiples of 16 bytes run on CUDA cores (cuBLAS
# documentation, "Tensor Core Usage"), at a 16th of the peak (A100's data sheet: 19.5 of 312 TFLOPS), masked scores too.
ALIGNED, CUDA_CORES = 8, 16
LAYER_TENSORS = 9  # of a layer, which ZeRO-1 sends one by one (InternEvo's optimizer)
# Estimates, not fitted: the loss's traffic for each logit (six passes in 32 bits); the share of a layer's traffic that
# tensor parallelism divides; backward's share of computing, during which gradients are summed; the share of the
# gradients that is sent after backward; how often a token's numbers are read or written to sort them by experts.
LOSS_BYTES, TP_TRAFFIC, BACKWARD_SHARE, LAST_BUCKET, ROUTING_PASSES = 24, 0.5, 0.7, 0.02, 8


@dataclass(frozen=True)
class Forecast:
    """The forecast of a step: ``seconds`` by part, ``memory`` of the fullest GPU by kind, in bytes."""

    plan: Plan
    sizes: Sizes
    gpu: Accelerator
    parts: dict[str, float] = field(hash=False)
    memory: dict[str, float] = field(hash=False)

    @cached_property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @cached_property
    def peak(self) -> float:
        return sum(self.memory.values())

    @property
    def reserved(self) -> float:
        """The bytes that nvidia-smi shows: the peak, CUDA's context with its kernels (1.3 GiB, Hugging Face's "Model
        training anatomy"), NCCL's buffers, and with recomputation fragments between blocks, 15 % of the blocks (mean of
        eight models in GMLake, arXiv 2401.08156).
        """
        pieces = 0.15 / 0.85 * self.memory["activations"] if self.plan.recompute else 0.0
        return self.peak + 2 * 2**30 + pieces

    @property
    def fits(self) -> bool:
        return self.peak <= self.gpu.usable

    @property
    def verdict(self) -> str:
        """Return "fits", "no", or "close": too close to call, for forecasts of peaks have been as wrong as that."""
        if self.peak * PEAK_ABOVE <= self.gpu.usable:
            return "fits"
        return "no" if self.peak * PEAK_BELOW > self.gpu.usable else "close"

    @property
    def tokens(self) -> float:
        """Tokens a second on each GPU."""
        plan = self.plan
        return plan.dp * plan.micro * plan.many * self.sizes.seq / plan.gpus / self.seconds

    @property
    def mfu(self) -> float:
        """The share of the dense peak that the model's own operations take."""
        return self.tokens * self.sizes.token_flops(bool(self.plan.lora)) / self.gpu.flops

    @property
    def largest(self) -> str:
        """The kind with the most bytes."""
        return max(self.memory, key=lambda kind: self.memory[kind])

    @property
    def no_fit_reason(self) -> str:
        """The reason why the plan does not fit; "" if it does."""
        if self.fits:
            return ""
        needed, there = bytes_text(int(self.peak)), bytes_text(int(self.gpu.usable))
        most = KINDS[self.largest]
        return say(
            en=f"needs {needed}, the GPU has {there}; most of it is {most}",
            zh=f"需要 {needed}，可用 {there}，最多的是{most}",
        )

    why_not = no_fit_reason  # the former name


def forecast(
    sizes: Sizes, plan: Plan, gpu: Accelerator | str = "h100", software: Software | None = None
) -> Forecast:
    """Forecast a step of ``plan`` on GPUs of one kind, such as "h100"."""
    gpu = accelerator(gpu) if isinstance(gpu, str) else gpu
    check_plan(sizes, plan)
    software = software or SOFTWARE["fsdp" if plan.stage == 3 else "megatron"]
    return Forecast(plan, sizes, gpu, _seconds(sizes, plan, gpu, software), memory(sizes, plan, software))


def _seconds(sizes: Sizes, plan: Plan, gpu: Accelerator, software: Software) -> dict[str, float]:
    """Return the seconds of a step by part."""
    tokens, links, layers = plan.micro * sizes.seq, gpu.links, -(-sizes.layers // plan.pp)
    dense = sizes.dense_layers if plan.pp == 1 else 0  # a later stage, without these layers, sets the pace
    mixed, plain = (_layer_seconds(sizes, plan, gpu, software, one) for one in (False, True))
    computed, sums, sent = (
        (layers - dense) * one + dense * other for one, other in zip(mixed, plain, strict=True)
    )
    head = (2 if plan.lora else 3) * product_seconds(tokens, sizes.hidden, sizes.vocab / plan.tp, gpu)
    head += LOSS_BYTES * tokens * sizes.vocab / plan.tp / gpu.bandwidth
    passed = 0.0
    if plan.pp > 1:  # to the next stage and back, each micro-batch
        passed = 2 * plan.chunks * send_seconds(2.0 * tokens * sizes.hidden / plan.tp, links, plan.gpus)
    tables = (1 if sizes.tied or plan.pp > 1 else 2) * sizes.vocab * sizes.hidden / plan.tp

    def count_held(rank: int = 0) -> float:
        common, experts = sizes.layer_counts(rank=rank, adapted=plan.adapted)
        return layers * (common / plan.tp + experts / plan.expert_ranks) + tables * (not rank)

    # Gradients overlap with the last micro-batch's backward, FSDP's gathers with all computing.
    room = software.overlap * (plan.many * computed if plan.stage == 3 else BACKWARD_SHARE * computed)
    trained = count_held(plan.lora)
    parts = {
        "compute": plan.many * (computed + head),
        "tensor": plan.many * sums,
        "experts": plan.many * sent,
        "pipeline": plan.many * passed,
        "bubble": (plan.pp - 1) / plan.chunks * (computed + sums + sent + passed),
        "data": _data_seconds(plan, gpu, (count_held(), trained), layers, room),
        "optimizer": software.step
        + STEP_BYTES * trained / (plan.shards if plan.stage else 1) / gpu.bandwidth,
    }
    return parts if sizes.experts else {name: took for name, took in parts.items() if name != "experts"}


def _layer_seconds(
    sizes: Sizes, plan: Plan, gpu: Accelerator, software: Software, dense: bool
) -> tuple[float, float, float]:
    """Return the seconds of a layer for one micro-batch: forward and backward, with recomputation; tp's all-reduces;
    and the messages to and from experts on other ranks.
    """
    tokens, hidden, tp = plan.micro * sizes.seq, sizes.hidden, plan.tp

    def feed(rows: float, width: float) -> tuple[float, float]:
        """Return the seconds of a feed-forward part, and of its last product."""
        last = product_seconds(rows, width, hidden, gpu)
        return last + product_seconds(rows, hidden, (2 if sizes.gated else 1) * width, gpu), last

    makes: dict[int, int] = {}  # matrices that read the same numbers are one product
    for name, (reads, made) in sizes.attention_matrices.items():
        makes[reads] = makes.get(reads, 0) + made * (name != "o_proj")
    products = product_seconds(tokens, sizes.output_width / tp, hidden, gpu)
    products += sum(product_seconds(tokens, reads, made / tp, gpu) for reads, made in makes.items() if made)
    traffic = TP_TRAFFIC / tp + 1 - TP_TRAFFIC
    moved = software.moved * LAYER_BYTES * tokens * hidden * traffic / gpu.bandwidth
    sent = 0.0
    if sizes.experts and not dense:
        ranks, mine = plan.ep, sizes.experts / plan.ep
        rows = tokens / (tp if ranks > 1 else 1) * sizes.top_k
        inside, last = feed(rows / mine, sizes.expert_ffn / (tp if ranks == 1 else 1))
        # With few tokens, reading weights lasts longer.
        read = 2 * sizes.layer_counts()[1] / plan.expert_ranks / gpu.bandwidth
        products += max(mine * inside, read) + product_seconds(tokens, hidden, sizes.experts, gpu)
        products += feed(tokens, sizes.shared_ffn / tp)[0] if sizes.shared_ffn else 0.0
        moved += ROUTING_PASSES * 2.0 * rows * hidden / gpu.bandwidth
        sent = 2 * all_to_all_seconds(2.0 * rows * hidden, gpu.links, ranks)
    else:
        both, last = feed(tokens, sizes.ffn / tp)
        products += both
    attention = tokens * sizes.seq * (sizes.query_width + sizes.output_width) / tp
    attention /= gpu.flops * gpu.attention
    if not plan.flash:
        moved += SCORE_BYTES * plan.micro * sizes.heads / tp * sizes.seq**2 / gpu.bandwidth
        if sizes.query_width // sizes.heads % ALIGNED:
            attention *= 2 * CUDA_CORES * gpu.attention / gpu.product
    sums = 2 * all_reduce_seconds(2.0 * tokens * hidden, gpu.links, tp)
    start = software.start * (1 + JITTER * (tp - 1) ** 2)

    def computing(seconds: float) -> float:
        return _longer(seconds + sums, start) - sums

    forward = products + attention + moved
    # Frozen weights need no gradients. The adapters' products are left out, which takes a few percent.
    scores = FLASH_BACKWARD if plan.flash else BACKWARD
    backward = computing((1 if plan.lora else 2) * products + scores * attention + 2 * moved)
    if plan.recompute:
        again = forward - last if software.stops_early else forward
        backward += computing(again * (0.5 if plan.recompute == "selective" else 1))
    times = 3 if plan.recompute else 2
    return computing(forward) + backward, sums * times, sent * times


def _data_seconds(plan: Plan, gpu: Accelerator, held: tuple[float, float], layers: int, room: float) -> float:
    """Return the seconds of gradients and sharded weights that do not overlap with ``room`` seconds of computing.

    held   parameters on a GPU, all and trained. Ranks with the same shard of tensors are neighbours.
    """
    if plan.dp == 1:
        return 0.0
    weights, gradients = 2 * held[0] * (plan.bits / 16), 2 * held[1]

    def gather_time(nbytes: float, messages: int) -> float:
        return gather_seconds(nbytes, gpu.links, plan.shards, plan.shards * plan.tp, messages)

    exposed = 0.0
    if plan.stage == 3:
        sums = 1 if plan.no_sync else plan.many
        beside = plan.many * 2 * gather_time(weights, layers) + sums * gather_time(gradients, layers)
        if plan.shards < plan.dp:
            copies = plan.dp // plan.shards
            beside += all_reduce_seconds(gradients / plan.shards, gpu.links, copies, plan.gpus)
    else:
        beside = all_reduce_seconds(gradients, gpu.links, plan.dp, plan.dp * plan.tp)
        if plan.stage:
            exposed = gather_time(gradients, layers * (LAYER_TENSORS if plan.stage == 1 else 1))
    return exposed + max(beside - room, LAST_BUCKET * beside) + CONTENTION * min(beside, room)


def product_seconds(m: float, k: float, n: float, gpu: Accelerator) -> float:
    """Return the seconds of a product of an m × k and a k × n matrix in 16 bits."""
    share = gpu.product
    for side in (m, k, n):
        share *= side / (side + HALF_SIDE)
    return 2 * m * k * n / (gpu.flops * share)


def _longer(one: float, other: float) -> float:
    """Return the longer of two times that run at once, and a little more if they are alike."""
    return float((one**SHARPNESS + other**SHARPNESS) ** (1 / SHARPNESS))
