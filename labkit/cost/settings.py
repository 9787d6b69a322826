"""Settings of a plan and of a trainer, which decide on a step's memory and time beside a model's sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ..base.language import wrong
from ..base.numbers import integer, one_of
from .sizes import Sizes


@dataclass(frozen=True)
class Software:
    """A trainer: its speed, and the bytes that its code allocates beside the model's states.

    start         seconds in which Python starts the kernels of one layer's forward; backward takes as long.
    overlap       share of backward that gradient communication can overlap with.
    step          further seconds of each step.
    stops_early   whether recomputation stops before the layer's last product, whose result is not needed.
    moved         memory traffic of a layer, relative to a plain one.
    logits        bytes for each logit in the loss: 16-bit logits, 32-bit copies, gradients.
    whole         whether each tensor-parallel rank has the logits of all words (PyTorch's without loss_parallel).
    gated         numbers that a gated layer saves per unit of width: 4, or 3 if one kernel multiplies them.
    bucket        bytes per parameter of DDP's buckets in stage 0; 0: two layers' worth.
    fixed         the least numbers in a buffer of gradients; the largest tensor may need more.
    adam          temporary bytes of the optimizer's step per updated parameter.
    norm          bytes per number of the largest gradient while the norm is computed.
    low           bytes per parameter of 16-bit gradients kept beside 32-bit sums.
    passing       bytes per parameter of 16-bit gradients that are freed when backward ends.
    packed        whether rotary embedding works in place in one block of queries, keys and values, from which the
                  latter are copied, and attention's output is copied if there are several sequences.
    flat          whether the step uses flat copies, which do not fit into freed blocks of activations.
    """

    start: float
    overlap: float
    step: float = 0.0
    stops_early: bool = False
    moved: float = 1.0
    logits: float = 6.0
    whole: bool = False
    gated: int = 3
    bucket: float = 0.0
    fixed: float = 0.0
    adam: float = 0.0
    norm: float = 0.0
    low: float = 0.0
    passing: float = 0.0
    packed: bool = False
    flat: bool = False


# PyTorch: cross_entropy holds log_softmax, its gradient and the logits' in 32 bits; foreach Adam a root for each
# parameter. Megatron-LM: vocab_parallel_cross_entropy and FusedAdam work in place. DeepSpeed: a bucket of 5e8 numbers,
# gradients flat in 16 and 32 bits and their norm in 64 (stage_1_and_2.py), or of both widths (bf16_optimizer.py).
# nanotron: FP32GradientAccumulator, DDP's buckets, two fp32 logits, flash-attention's rotary.py. MosaicML: a fused
# loss. InternEvo: flat copies of gradients in 16 and 32 bits, foreach AdamW of torch 2.0.
SOFTWARE = {
    "fsdp": Software(0.0004, 0.714, step=0.0371, stops_early=True, logits=12, whole=True, gated=4, adam=4),
    "megatron": Software(0.0004, 1, step=0.168, moved=1.83),
    "megatron-2021": Software(
        0.00112, 0.538, 0.00422, moved=0.4, fixed=5e8, adam=2, norm=8, low=2, flat=True
    ),
    "mosaic": Software(0.0004, 0.714, step=0.0371, stops_early=True, logits=4, gated=4),
    "nanotron": Software(0.0004, 1, moved=1.83, logits=8, gated=4, passing=2, bucket=2, packed=True),
    "internevo": Software(0.0004, 1, step=0.168, moved=1.83, gated=4, adam=10, flat=True),
}
# The allowed values of these fields of Plan.
_WORDS = {
    "spread": ("", "uneven", "ends", "cost"), "grads": ("2", "4"), "recompute": ("True", "False", "selective"),
    "sp": ("True", "False", "gathered"), "bits": ("4", "16"), "no_sync": ("True", "False"),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A plan: how dp · tp · pp GPUs share a model and its batch.

    stage        ZeRO's stage, which shards over data-parallel ranks; 3 is FSDP. ``group``: the number of these ranks.
    micro        sequences in a micro-batch; ``many``: micro-batches of a step in each pipeline.
    recompute    whether backward recomputes layers from their inputs; "selective": half of each layer.
    chunks       chunks of each stage of an interleaved pipeline.
    sp           sequence parallelism: norms and residuals, which tp does not divide, are cut along the sequence;
                 "gathered": gathered inputs of products are saved for backward (as PyTorch does, and Megatron not).
    flash        attention in one kernel; otherwise the scores of a layer are saved.
    grads        bytes of a gradient while micro-batches are summed: 2, or 4 in 32 bits (Megatron's main_grad).
    spread       layers over stages: "" evenly; "uneven": some have one more; "ends": embedding and head count as a
                 layer each (DeepSpeed's type:transformer|embedding); "cost": the head by its operations (nanotron).
    ep           expert parallelism: ranks among the dp · tp of a stage that share the experts. 1: tp cuts each expert.
    lora         rank of LoRA's adapters; 0: all weights are trained. ``adapted``: names of the matrices with adapters,
                 as in Hugging Face's models; empty: all matrices of layers but routers.
    bits         of a frozen weight in a layer: 16, or 4 (NF4 with a 32-bit scale for 64 weights, arXiv 2305.14314).
    no_sync      whether gradients are reduced in the last micro-batch only (FSDP's no_sync, accelerate's default):
                 stages 2 and 3 hold whole gradients until then. Without it, every micro-batch reduces into shards.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    stage: int = 1
    micro: int = 1
    many: int = 1
    recompute: bool | str = False
    group: int = 0
    chunks: int = 1
    sp: bool | str = False
    flash: bool = True
    grads: int = 2
    spread: str = ""
    ep: int = 1
    lora: int = 0
    adapted: tuple[str, ...] = ()
    bits: int = 16
    no_sync: bool = False

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def number_bytes(self) -> int:
        """The bytes of an activation, and of a weight that is not quantised: beside weights of 4 bits, PEFT's
        prepare_model_for_kbit_training keeps them in 32 bits.
        """
        return 4 if self.bits == 4 else 2

    @property
    def shards(self) -> int:
        """The number of ranks that shard the optimizer's state."""
        return min(self.group or self.dp, self.dp) if self.stage else 1

    @property
    def expert_ranks(self) -> int:
        """The number of ranks that the experts of a layer are cut over."""
        return self.ep if self.ep > 1 else self.tp

    def __str__(self) -> str:
        experts = f" ep{self.ep}" if self.ep > 1 else ""
        cut = f" sp {self.sp}".removesuffix(" True") if self.sp else ""
        words = f"dp{self.dp} tp{self.tp} pp{self.pp}{experts} zero{self.stage} micro {self.micro}×{self.many}{cut}"
        return words + " no_sync" * self.no_sync + " recompute" * bool(self.recompute)


def check_plan(sizes: Sizes, plan: Plan) -> None:
    """Raise an error, naming the argument, if a number of ``plan`` is out of range or cannot divide ``sizes``."""
    for name in ("dp", "tp", "pp", "micro", "many", "chunks", "ep"):
        integer(name, getattr(plan, name), 1)
    integer("stage", plan.stage, 0, 3)
    integer("lora", plan.lora, 0)
    for name in plan.adapted:
        one_of("lora", name, sorted(adapted_matrices(sizes, replace(plan, lora=1, adapted=())) or ()))
    for name, known in _WORDS.items():
        one_of(name, str(getattr(plan, name)), known)
    tp, kv, parts = plan.tp, sizes.kv_heads or sizes.heads, plan.pp * plan.chunks
    plain = not sizes.experts or sizes.dense_layers  # a layer without experts
    # More ranks than kv_heads is allowed: they hold copies. So is a group larger than dp, which is all ranks.
    for name, value, of, count in (
        ("tp", tp, "heads", sizes.heads), ("tp", tp, "kv_heads", kv if tp % kv else tp),
        ("tp", tp, "ffn", sizes.ffn * bool(plain)),
        ("tp", tp if plan.ep == 1 else 1, "expert_ffn", sizes.expert_ffn), ("tp", tp, "shared_ffn", sizes.shared_ffn),
        ("ep", plan.ep, "experts", sizes.experts or 1), ("ep", plan.ep, "dp · tp", plan.dp * plan.tp),
        ("pp · chunks", parts, "layers", 0 if plan.spread else sizes.layers),
        ("group", plan.group or 1, "dp", plan.dp if plan.group < plan.dp else 0),
    ):  # fmt: skip
        if count % value:
            hint = ', or say spread="uneven"' if of == "layers" else ""
            raise wrong(
                en=f"{name}={value} does not divide {of}={count}: choose a divisor of it{hint}",
                zh=f"{name}={value} 不能整除 {of}={count}：请选它的约数{hint.replace(', or say ', '，或写明 ')}",
            )
    integer("pp", plan.pp, 1, sizes.layers // plan.chunks)


def adapted_matrices(sizes: Sizes, plan: Plan) -> Collection[str] | None:
    """Return the names of the matrices with LoRA's adapters; None: without LoRA."""
    if not plan.lora:
        return None
    return plan.adapted or {name for part in sizes.layer_matrices() for name in part} - {"router"}
