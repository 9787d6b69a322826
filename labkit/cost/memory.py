"""Forecast the bytes of the fullest GPU in a training step, by kind: each term has a source.

* Weights in 16 bits, gradients in 16 or 32, Adam's moments and a master copy in 32; ZeRO's stages shard them over the
  data-parallel ranks (Rajbhandari et al., arXiv 1910.02054; Megatron-LM's docs, dist_optimizer: 6 + 12/d bytes).
* A pipeline stage holds its layers, the first the embedding, the last the head. Under 1F1B stage i keeps the
  activations of p - i micro-batches (Narayanan et al., arXiv 2104.04473); the logits are the last stage's.
* A layer's activations: Korthikanti et al. (arXiv 2205.05198), with and without sequence parallelism, scores or flash.
  An operator in backward holds the gradients of its result and its input.
* Buffers of the trainer (:class:`.settings.Software`). Activations are gone when the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..base.texts import Text
from .settings import SOFTWARE, Plan, Software
from .sizes import Sizes

# The kinds of bytes.
KINDS = {
    kind: Text(kind, zh)
    for kind, zh in (
        ("weights", "权重"), ("gradients", "梯度"), ("optimizer", "优化器状态"), ("activations", "激活值"),
        ("buckets", "通信缓冲区"),
    )
}  # fmt: skip


def memory(sizes: Sizes, plan: Plan, software: Software | None = None) -> dict[str, float]:
    """Return the bytes of the fullest GPU by kind, at the moment when it holds most."""
    software = software or SOFTWARE["fsdp" if plan.stage == 3 else "megatron"]
    return max(_moments(sizes, plan, software), key=lambda kinds: sum(kinds.values()))


def stage_layers(sizes: Sizes, plan: Plan) -> list[tuple[int, int]]:
    """Return (stage, layers) for the stages that may be the fullest: the first, the second, the last."""
    stages, layers = sorted({0, min(1, plan.pp - 1), plan.pp - 1}), sizes.layers
    if plan.spread == "ends":
        most = -(-(layers + 2) // plan.pp)
        return [(i, max(0, most - (i == 0) - (i == plan.pp - 1))) for i in stages]
    if plan.spread == "cost":
        share = (layers + sizes.vocab * sizes.hidden / sizes.layer_parameters) / plan.pp
        ends = [min(layers, int(share * i) + 1) if i else 0 for i in range(plan.pp)] + [layers]
        return [(i, ends[i + 1] - ends[i]) for i in stages]
    return [(i, -(-layers // plan.pp)) for i in stages]


def _moments(sizes: Sizes, plan: Plan, software: Software) -> Iterator[dict[str, float]]:
    """Yield the bytes of each stage at the start of backward, at its end, and in the optimizer's step."""
    tokens, tp, sp = plan.micro * sizes.seq, plan.tp, plan.sp
    sharded = [plan.shards if plan.stage >= stage else 1 for stage in (1, 2, 3)]
    way = plan.recompute if isinstance(plan.recompute, str) else "full"
    kept = sizes.activation_bytes(plan.micro, tp, sequence=sp, flash=plan.flash, gated=software.gated)
    if software.packed:
        together = 0 if 0 < sizes.kv_heads < sizes.heads else 2 * sizes.hidden
        kept += 2.0 * tokens / tp * (together + sizes.hidden * (plan.micro > 1))
    each = sizes.activation_bytes(plan.micro, tp, sequence=sp, recompute=way) if plan.recompute else kept
    mask = tokens * sizes.hidden / (tp if sp else 1) * sizes.dropout  # of the embedding
    table, low = float(sizes.vocab * sizes.hidden), software.low if plan.grads == 4 else 0.0
    chunks = 1 + (plan.pp - 1) / (plan.pp * plan.chunks) * (plan.chunks > 1)
    # The gradients of the widest result and of its input; with sequence parallelism, of whole sequences, gathered.
    wide = 4.0 * tokens * max(sizes.ffn * (1 + sizes.gated) / tp, sizes.hidden)
    scores = 0.0 if plan.flash else 4.0 * plan.micro * sizes.seq**2 * sizes.heads / tp
    working = max(wide, scores) + (kept if plan.recompute else 0.0)
    unit = 2.0 * sizes.layer_parameters / tp
    for stage, layers in stage_layers(sizes, plan):
        first, last = stage == 0, stage == plan.pp - 1
        ends = table * (first + last - (first and last and sizes.tied))
        held = (layers * (sizes.layer_parameters + 2 * sizes.hidden) + ends) / tp
        alive = min(plan.many, plan.pp - stage) * chunks
        logits = software.logits * tokens * sizes.vocab / tp if last else 0.0
        buckets = 0.0
        if plan.dp > 1:
            shared = software.bucket * held if plan.stage == 0 and software.bucket else 2 * unit
            buckets = 4 * unit + 2 * ends / tp if plan.stage == 3 else shared
        if software.fixed:
            buckets += plan.grads * max(software.fixed, min(ends, table) / tp)
        states = {
            "weights": 2 * held / sharded[2],
            "gradients": (plan.grads + low) * held / sharded[1],
            "optimizer": 12 * held / sharded[0],
        }
        own, short = held / sharded[0], plan.grads == 2
        # Gradients of 16 bits are copied to 32 for Adam, unless FSDP's shards are in 32 bits already.
        copies = 4 if short and (plan.stage < 3 or software.flat) else 0
        step = (copies + software.adam * (short or plan.stage == 3)) * own
        step = max(step, software.norm * min(ends / tp, own) * short)
        one = layers * each + first * mask
        buckets += step * software.flat
        yield states | {"activations": one * alive + max(logits, working), "buckets": buckets}
        yield states | {"activations": one * (alive - 1) + software.passing * held, "buckets": buckets}
        yield states | {"activations": 0.0, "buckets": buckets + step * (not software.flat)}
