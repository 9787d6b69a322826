"""Forecast the bytes of the fullest GPU in a training step, by kind: each term has a source.

* Weights in 16 bits, gradients in 16 or 32, Adam's moments and a master copy in 32; ZeRO's stages shard them over the
  data-parallel ranks (Rajbhandari et al., arXiv 1910.02054; Megatron-LM's docs, dist_optimizer: 6 + 12/d bytes).
* A pipeline stage holds its layers, the first the embedding, the last the head. Under 1F1B stage i keeps the
  activations of p - i micro-batches (Narayanan et al., arXiv 2104.04473); the logits are the last stage's.
* A layer's activations: Korthikanti et al. (arXiv 2205.05198), with and without sequence parallelism, scores or flash.
  An operator in backward holds the gradients of its result and its input.
* Experts are spread over ``ep`` ranks; ZeRO shards them over the ranks that hold the same ones (Megatron Core's MoE).
* With LoRA (arXiv 2106.09685) only adapters have gradients and moments; a frozen matrix keeps no input.
* Buffers of the trainer (:class:`.settings.Software`). Activations are gone when the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..base.texts import Text
from .settings import SOFTWARE, Plan, Software, adapted_matrices
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
    if not plan.stage:  # these buffers are those of the optimizers that shard
        software = replace(software, fixed=0.0, norm=0.0, low=0.0, flat=False)
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


def _layer_bytes(sizes: Sizes, plan: Plan, software: Software, dense: bool) -> tuple[float, float]:
    """Return the bytes that a layer keeps for backward, and those that exist while its backward works."""
    tokens, tp, sp = plan.micro * sizes.seq, plan.tp, plan.sp
    number = plan.number_bytes
    kept = sizes.activation_bytes(
        plan.micro, tp, sequence=sp, flash=plan.flash, gated=software.gated, ep=plan.ep, dense=dense,
        adapted=adapted_matrices(sizes, plan), number=number,
    )  # fmt: skip
    if software.packed:
        together = 0 if 0 < sizes.kv_heads < sizes.heads else 2 * sizes.hidden
        kept += 2.0 * tokens / tp * (together + sizes.hidden * (plan.micro > 1))
    each = kept
    if plan.recompute:
        way = plan.recompute if isinstance(plan.recompute, str) else "full"
        each = sizes.activation_bytes(plan.micro, tp, sequence=sp, recompute=way, dense=dense, number=number)
    # The gradients of the widest result and of its input; with sequence parallelism, of whole sequences, gathered.
    made, widths = 1 + sizes.gated, [float(sizes.hidden)]
    if sizes.experts and not dense:
        sent = sizes.top_k * sizes.hidden / (tp if plan.ep > 1 else 1)
        widths += [sent, sizes.top_k * sizes.expert_ffn * made / tp, sizes.shared_ffn * made / tp]
    else:
        widths.append(sizes.ffn * made / tp)
    scores = 0.0 if plan.flash else 2.0 * number * plan.micro * sizes.seq**2 * sizes.heads / tp
    working = max(2.0 * number * tokens * max(widths), scores) + (kept if plan.recompute else 0.0)
    if plan.bits == 4:  # a matrix in 16 bits
        matrices = [one for part in sizes.layer_matrices(dense) for one in part.values()]
        working += 2.0 * max(reads * makes for reads, makes in matrices) / tp
    return each, working


def _moments(sizes: Sizes, plan: Plan, software: Software) -> Iterator[dict[str, float]]:
    """Yield the bytes of each stage at the start of backward, at its end, and in the optimizer's step."""
    tokens, tp = plan.micro * sizes.seq, plan.tp
    number, weight = plan.number_bytes, plan.bits / 8 + (4 / 64) * (plan.bits == 4)  # of a layer's matrix
    (each, working), plain = (_layer_bytes(sizes, plan, software, dense) for dense in (False, True))
    mask = tokens * sizes.hidden / (tp if plan.sp else 1) * sizes.dropout  # of the embedding
    table, low = float(sizes.vocab * sizes.hidden), software.low if plan.grads == 4 else 0.0
    chunks = 1 + (plan.pp - 1) / (plan.pp * plan.chunks) * (plan.chunks > 1)

    def count(layers: int, dense: int, rank: int = 0) -> tuple[float, float]:
        """Return the parameters that a GPU holds, and those that ZeRO shards: with experts, other GPUs' too."""
        (common, experts), (first, _) = (
            sizes.layer_counts(one, rank=rank, adapted=plan.adapted) for one in (False, True)
        )
        common, experts = common * (layers - dense) + first * dense, experts * (layers - dense)
        return common / tp + experts / plan.expert_ranks, (common + experts) / tp

    def shard_parameters(counts: tuple[float, float], stage: int) -> float:
        return counts[1] / plan.shards if plan.stage >= stage else counts[0]

    unit = count(1, 0)[0]
    moving = 2 * count(1, 0, plan.lora)[0]
    for stage, layers in stage_layers(sizes, plan):
        first, last = stage == 0, stage == plan.pp - 1
        dense = min(sizes.dense_layers, layers) * first
        ends = table * (first + last - (first and last and sizes.tied))
        matrices, outside = count(layers, dense), (layers * sizes.layer_vectors + ends) / tp
        held = (matrices[0] + outside, matrices[1] + outside)
        trained = count(layers, dense, plan.lora) if plan.lora else held
        alive = min(plan.many, plan.pp - stage) * chunks
        # With LoRA, transformers: it holds the model's logits beside the loss's three copies in 32 bits.
        logits = (12 + number if plan.lora else software.logits) * tokens * sizes.vocab * last
        logits /= 1 if software.whole else tp
        buckets = 0.0
        if plan.dp > 1:
            shared = software.bucket * trained[0] if plan.stage == 0 and software.bucket else 2 * moving
            buckets = 2 * weight * unit + 2 * moving + 2 * ends / tp if plan.stage == 3 else shared
        if software.fixed:
            buckets += plan.grads * max(software.fixed, min(ends, table) / tp)
        own, short = shard_parameters(trained, 1), plan.grads == 2 and not plan.lora
        weights = number * shard_parameters(held, 3) + (weight - number) * shard_parameters(matrices, 3)
        states = {
            "weights": weights + (2 * shard_parameters(trained, 3) if plan.lora else 0),
            "gradients": (plan.grads + low) * shard_parameters(trained, 2),
            "optimizer": 12 * own,
        }
        # Gradients of 16 bits are copied to 32 for Adam, unless FSDP's shards are in 32 bits already.
        copies = 4 if short and (plan.stage < 3 or software.flat) else 0
        step = (copies + software.adam * (short or plan.stage == 3 or plan.lora > 0)) * own
        step = max(step, software.norm * min(ends / tp, own) * short)
        one = (layers - dense) * each + dense * plain[0] + first * mask
        buckets += step * software.flat
        # Autograd adds to whole gradients, which FSDP2 keeps in its reduce_dtype; shards come into being afterwards.
        whole = {"gradients": (plan.grads + low) * trained[0]} if plan.no_sync and plan.many > 1 else {}
        yield (
            states
            | whole
            | {
                "activations": one * alive + max(logits, working, plain[1] * bool(dense)),
                "buckets": buckets,
            }
        )
        yield states | {"activations": one * (alive - 1) + software.passing * trained[0], "buckets": buckets}
        yield states | {"activations": 0.0, "buckets": buckets + step * (not software.flat)}
