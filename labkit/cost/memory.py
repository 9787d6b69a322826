"""The bytes of the fullest GPU in a training step, by kind: each term has a name and a source.

* Weights in 16 bits, gradients in 16 or 32, Adam's two moments and a master copy in 32; ZeRO's stages shard them over
  the data-parallel ranks (Rajbhandari et al., arXiv 1910.02054; Megatron-LM's docs, dist_optimizer: 6 + 12/d bytes).
* A stage of a pipeline holds its layers, the first the embedding, the last the head. Under 1F1B stage i keeps the
  activations of p - i micro-batches (Narayanan et al., arXiv 2104.04473); the logits are the last one's.
* A layer's activations: Korthikanti et al. (arXiv 2205.05198), with and without sequence parallelism, scores or flash.
  The operator that is being computed backward holds its result's gradient and its input's.
* What the trainer holds besides (:class:`.settings.Software`). Activations are gone when the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..base.texts import Text
from .settings import SOFTWARE, Plan, Software
from .sizes import Sizes

# What bytes are for, and how it is said.
KINDS = {
    kind: Text(kind, zh)
    for kind, zh in (
        ("weights", "权重"), ("gradients", "梯度"), ("optimizer", "优化器状态"), ("activations", "激活值"),
        ("buckets", "通信缓冲区"),
    )
}  # fmt: skip


def memory(sizes: Sizes, plan: Plan, software: Software | None = None) -> dict[str, float]:
    """The bytes of the fullest GPU by kind, when it holds most."""
    software = software or SOFTWARE["fsdp" if plan.stage == 3 else "megatron"]
    return max(_moments(sizes, plan, software), key=lambda kinds: sum(kinds.values()))


def stage_layers(sizes: Sizes, plan: Plan) -> list[tuple[int, int]]:
    """Stages that may be the fullest and their layers: the first, the second, the last."""
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
    """What each stage holds when backward begins, and when the optimizer steps."""
    tokens, tp, flash = plan.micro * sizes.seq, plan.tp, plan.flash
    sharded = [plan.shards if plan.stage >= stage else 1 for stage in (1, 2, 3)]
    kept = sizes.kept_bytes(plan.micro, tp, sequence=plan.sp, flash=flash, gated=software.gated)
    way = plan.recompute if isinstance(plan.recompute, str) else "full"
    table = float(sizes.vocab * sizes.hidden)
    chunks = 1 + (plan.pp - 1) / (plan.pp * plan.chunks) * (plan.chunks > 1)
    # The gradients of the widest result and of its input; with sequence parallelism, of whole sequences, gathered.
    wide = 2.0 * tokens * max(sizes.ffn * (2 if sizes.gated else 1) / tp, sizes.hidden)
    passing = max(2 * wide, 0 if flash else 4.0 * plan.micro * sizes.seq**2 * sizes.heads / tp)
    unit = 2.0 * sizes.layer_parameters / tp
    for stage, layers in stage_layers(sizes, plan):
        first, last = stage == 0, stage == plan.pp - 1
        ends = table * (first + last - (first and last and sizes.tied))
        held = (layers * (sizes.layer_parameters + 2 * sizes.hidden) + ends) / tp
        one = layers * (
            sizes.kept_bytes(plan.micro, tp, sequence=plan.sp, recompute=way) if plan.recompute else kept
        )
        one += (
            tokens * sizes.hidden / (tp if plan.sp else 1) * (first and sizes.dropout)
        )  # the embedding's mask
        alive = min(plan.many, plan.pp - stage) * chunks
        logits = software.logits * tokens * sizes.vocab / tp if last else 0.0
        working = passing + (kept if plan.recompute else 0.0)
        buckets = 0.0
        if plan.dp > 1:
            shared = software.bucket * held if plan.stage == 0 and software.bucket else 2 * unit
            buckets = 4 * unit + 2 * ends / tp if plan.stage == 3 else shared
        if software.fixed:
            buckets += plan.grads * max(software.fixed, min(ends, table) / tp)
        low = software.low if plan.grads == 4 else 0.0
        states = {
            "weights": 2 * held / sharded[2],
            "gradients": (plan.grads + low) * held / sharded[1],
            "optimizer": 12 * held / sharded[0],
        }
        # Gradients of 16 bits are copied to 32 for Adam, unless FSDP's shards are in 32 bits already.
        own = held / sharded[0]
        step = software.adam if plan.grads == 2 or plan.stage == 3 else 0.0
        step = (step + (4 if plan.grads == 2 and (plan.stage < 3 or software.flat) else 0)) * own
        step = max(step, software.norm * min(table / tp, own) if plan.grads == 2 and ends else 0.0)
        yield states | {
            "activations": one * alive + max(logits, working),
            "buckets": buckets + step * software.flat,
        }
        yield states | {"activations": 0.0, "buckets": buckets + step}
