"""The seconds and bytes of a training step of a transformer, from sizes alone, for each way to share it among GPUs.

The model, and what it leaves out:

* A product of matrices takes its operations over a share of the peak that falls where a side is short; attention has a
  share of its own; all else moves bytes through the GPU's memory. Whichever is longer counts: the GPU's work, or the
  time in which Python starts a layer's kernels.
* Tensor parallelism waits for two all-reduces a layer each way. A ring's time is its bytes over the bus bandwidth and a
  latency. Machines share a network whose bandwidth falls as there are more.
* A pipeline of p stages stands idle for p - 1 micro-batches; the slowest stage sets the pace.
* Gradients are summed, and sharded weights gathered, beside the computing, which they slow; what is longer sticks out.
* No loader, no checkpoint, no stragglers, no clocks that fall as a GPU gets hot; one kind of GPU; experts, float8, and
  ways to share a long sequence, are left out.

What memory is made of stands in :mod:`.memory`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ..base.language import say
from ..base.units import bytes_text
from .hardware import Accelerator, accelerator, all_reduce_seconds, gather_seconds, send_seconds
from .memory import KINDS as KINDS
from .memory import memory as memory
from .settings import SOFTWARE, Plan, Software, check_plan
from .sizes import Sizes

# Fitted to the calibration rows (docs/plan.md). A side of a product at which half of its share is lost; bytes that are
# moved in forward for each number of a layer's input, and of the scores, where attention is not one kernel; the share
# by which what goes beside the computing slows it; how much longer Python's part is where tp ranks wait for the last;
# how sharply the longer of two counts.
HALF_SIDE = 160
LAYER_BYTES = 51.1
SCORE_BYTES = 13
CONTENTION = 0.166
JITTER = 0.00479
SHARP = 3.98
STEP_BYTES = 28.0  # moved by the optimizer for a parameter of its own
# Of a layer: ZeRO-1 gives a rank whole ones, and each is sent by itself (InternEvo's optimizer).
TENSORS = 9


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
    def allocated(self) -> float:
        """Bytes after a step: the model's states."""
        return self.peak - self.memory["activations"] - self.memory["buckets"]

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
    def tokens(self) -> float:
        """Tokens a second on each GPU."""
        plan = self.plan
        return plan.dp * plan.micro * plan.many * self.sizes.seq / plan.gpus / self.seconds

    @property
    def mfu(self) -> float:
        """The share of the dense peak that the model's own operations take."""
        return self.tokens * self.sizes.token_flops() / self.gpu.flops

    @property
    def largest(self) -> str:
        """The kind with the most bytes."""
        return max(self.memory, key=lambda kind: self.memory[kind])

    @property
    def no_fit_reason(self) -> str:
        """The reason why the plan does not fit; "" if it does."""
        if self.fits:
            return ""
        needed, there, most = (
            bytes_text(int(self.peak)), bytes_text(int(self.gpu.usable)), KINDS[self.largest],
        )  # fmt: skip
        return say(
            en=f"{needed} of {there}, most of it {most}", zh=f"需要 {needed}，可用 {there}，最多的是{most}"
        )


def forecast(
    sizes: Sizes, plan: Plan, gpu: Accelerator | str = "h100", software: Software | None = None
) -> Forecast:
    """Forecast a step of ``plan`` on GPUs of one kind, such as "h100"."""
    gpu = accelerator(gpu) if isinstance(gpu, str) else gpu
    check_plan(sizes, plan)
    software = software or SOFTWARE["fsdp" if plan.stage == 3 else "megatron"]
    return Forecast(plan, sizes, gpu, _seconds(sizes, plan, gpu, software), memory(sizes, plan, software))


def _seconds(sizes: Sizes, plan: Plan, gpu: Accelerator, software: Software) -> dict[str, float]:
    tokens, hidden, tp, links = plan.micro * sizes.seq, sizes.hidden, plan.tp, gpu.links
    layers = -(-sizes.layers // plan.pp)

    def product(m: float, k: float, n: float) -> float:
        return product_seconds(m, k, n, gpu)

    products = (
        product(tokens, hidden, (hidden + 2 * sizes.kv_width) / tp)
        + product(tokens, hidden / tp, hidden)
        + product(tokens, hidden, (2 if sizes.gated else 1) * sizes.ffn / tp)
        + product(tokens, sizes.ffn / tp, hidden)
    )
    scores = plan.micro * sizes.heads / tp * float(sizes.seq) ** 2
    attention = 2 * tokens * sizes.seq * hidden / tp * (1 if plan.flash else 2) / (gpu.flops * gpu.attention)
    moved = software.moved * LAYER_BYTES * tokens * (hidden / tp * 0.5 + hidden * 0.5) / gpu.bandwidth
    if not plan.flash:
        moved += SCORE_BYTES * scores / gpu.bandwidth
        attention *= 0.5
    sums = 2 * all_reduce_seconds(2.0 * tokens * hidden, links, tp)
    start = software.start * (1 + JITTER * (tp - 1) ** 2)  # all wait for the last at each sum
    one_way, other = products + attention + moved, 2 * products + 2.5 * attention + 2 * moved
    forward, backward = _longer(one_way + sums, start) - sums, _longer(other + sums, start) - sums
    again = 0.0
    if plan.recompute:
        last = product(tokens, sizes.ffn / tp, hidden) if software.stops_early else 0.0
        half = 0.5 if plan.recompute == "selective" else 1.0
        again = _longer((one_way - last) * half + sums, start) - sums
    sums *= 3 if plan.recompute else 2
    head = 3 * product(tokens, hidden, sizes.vocab / tp) + 24 * tokens * sizes.vocab / tp / gpu.bandwidth

    computed = layers * (forward + backward + again)
    waits = layers * sums
    passed = 0.0
    if plan.pp > 1:  # to the next stage and back, each micro-batch
        passed = 2 * plan.chunks * send_seconds(2.0 * tokens * hidden, links, plan.gpus)
    micro = computed + waits + passed
    # Weights and gradients on their way. Ranks of one shard of tensors are next to each other.
    held = (
        layers * sizes.layer_parameters + sizes.vocab * hidden * (1 if sizes.tied or plan.pp > 1 else 2)
    ) / tp

    def gather_time(messages: int) -> float:
        return gather_seconds(2 * held, links, plan.shards, plan.shards * tp, messages)

    beside = 0.0
    if plan.dp > 1 and plan.stage == 3:
        beside = 3 * plan.many * gather_time(layers)  # twice the weights, once the gradients
        if plan.shards < plan.dp:
            beside += all_reduce_seconds(2 * held / plan.shards, links, plan.dp // plan.shards, plan.gpus)
    elif plan.dp > 1:
        beside = all_reduce_seconds(2 * held, links, plan.dp, plan.dp * tp)
    computing = plan.many * computed
    room = software.overlap * (computing if plan.stage == 3 else computed * 0.7)
    exposed = max(beside - room, 0.02 * beside) + CONTENTION * min(beside, room)
    step = software.step + STEP_BYTES * held / (plan.shards if plan.stage else 1) / gpu.bandwidth
    if plan.stage in (1, 2) and plan.dp > 1:
        exposed += gather_time(layers * (TENSORS if plan.stage == 1 else 1))
    return {
        "compute": computing + plan.many * head,
        "tensor": plan.many * waits,
        "pipeline": plan.many * passed,
        "bubble": (plan.pp - 1) / plan.chunks * micro,
        "data": exposed,
        "optimizer": step,
    }


def product_seconds(m: float, k: float, n: float, gpu: Accelerator) -> float:
    """Return the seconds of a product of an m × k and a k × n matrix in 16 bits."""
    share = gpu.product
    for side in (m, k, n):
        share *= side / (side + HALF_SIDE)
    return 2 * m * k * n / (gpu.flops * share)


def _longer(one: float, other: float) -> float:
    """Return the longer of two times that run at once, and a little more if they are alike."""
    return float((one**SHARP + other**SHARP) ** (1 / SHARP))
