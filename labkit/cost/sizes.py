"""A transformer from its sizes: parameters, operations, and the bytes that a layer saves for backward."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from ..base.language import say, wrong
from ..base.numbers import integer

# A matrix is (numbers that it reads, numbers that it makes) for a token.
Matrices = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Sizes:
    """A decoder's sizes.

    heads, kv_heads   of attention; fewer kv_heads share keys and values.
    ffn               the width of the feed-forward part; ``gated`` if it has three matrices and not two.
    seq               tokens in a sequence.
    tied              whether the output shares the embedding's weights.
    dropout           whether masks of dropout are kept, as in GPT-2.
    name              what a table calls it.
    head_dim          numbers of a head's query and key; 0: hidden / heads. ``value_dim``: of its value; 0: as many.
    kv_rank, q_rank   latent attention (DeepSeek-V2): the widths to which keys with values, and queries, are compressed.
                      0: not compressed. ``rope``: the part of head_dim that carries the position.
    experts           experts of a layer, of width ``expert_ffn``; a router sends each token to ``top_k`` of them.
    shared_ffn        the width of the experts that every token visits.
    dense_layers      layers without experts, of width ``ffn``: the first ones.
    vectors           numbers in the norms and biases of a layer; 0: two norms without biases.
    rest              parameters outside layers, embedding and head; 0: one norm.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    kv_heads: int = 0
    gated: bool = False
    tied: bool = False
    dropout: bool = False
    name: str = ""
    head_dim: int = 0
    value_dim: int = 0
    kv_rank: int = 0
    q_rank: int = 0
    rope: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    vectors: int = 0
    rest: int = 0

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.type == "int":
                least = one.default != 0 or (bool(self.experts) and one.name in ("top_k", "expert_ffn"))
                integer(one.name, getattr(self, one.name), int(least))
        hidden = 1 if self.head_dim else self.heads
        for name, parts, of in (("heads", hidden, "hidden"), ("kv_heads", self.kv_heads or 1, "heads")):
            if (total := getattr(self, of)) % parts:
                raise wrong(
                    en=f"{name}={parts} does not divide {of}={total}: choose a divisor of it",
                    zh=f"{name}={parts} 不能整除 {of}={total}：请选它的约数",
                )
        integer("top_k", self.top_k, 0, self.experts)
        integer("dense_layers", self.dense_layers, 0, self.layers)

    @property
    def query_width(self) -> int:
        """Numbers of a token's queries."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def kv_width(self) -> int:
        """Numbers of a token's keys."""
        return self.query_width * (self.kv_heads or self.heads) // self.heads

    @property
    def value_width(self) -> int:
        """Numbers of a token's values."""
        return (self.kv_heads or self.heads) * self.value_dim or self.kv_width

    @property
    def output_width(self) -> int:
        """Numbers of attention's output for a token."""
        return self.heads * self.value_dim or self.query_width

    @property
    def attention_matrices(self) -> Matrices:
        """Return attention's matrices by their names in Hugging Face's models."""
        hidden, output = self.hidden, {"o_proj": (self.output_width, self.hidden)}
        if not self.kv_rank:
            widths = (self.query_width, self.kv_width, self.value_width)
            return {f"{one}_proj": (hidden, width) for one, width in zip("qkv", widths, strict=True)} | output
        queries = {"q_proj": (hidden, self.query_width)}
        if self.q_rank:
            queries = {"q_a_proj": (hidden, self.q_rank), "q_b_proj": (self.q_rank, self.query_width)}
        unpacked = self.query_width - self.heads * self.rope + self.value_width
        latent = {"kv_a_proj": (hidden, self.kv_rank + self.rope), "kv_b_proj": (self.kv_rank, unpacked)}
        return queries | latent | output

    def feed_matrices(self, width: int) -> Matrices:
        """Return the matrices of a feed-forward part, or of an expert, of ``width``."""
        first = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        return dict.fromkeys(first, (self.hidden, width)) | {"down_proj": (width, self.hidden)}

    def layer_matrices(self, dense: bool = False) -> tuple[Matrices, Matrices]:
        """Return the matrices that each token meets in a layer beside routed experts, and those of an expert."""
        if dense or not self.experts:
            return {**self.attention_matrices, **self.feed_matrices(self.ffn)}, {}
        router = {"router": (self.hidden, self.experts)}
        shared = self.feed_matrices(self.shared_ffn) if self.shared_ffn else {}
        return {**self.attention_matrices, **router, **shared}, self.feed_matrices(self.expert_ffn)

    def layer_counts(
        self, dense: bool = False, *, rank: int = 0, adapted: Collection[str] = ()
    ) -> tuple[int, int]:
        """Return the parameters of a layer's matrices: beside routed experts, and of all of these.

        rank   those of LoRA's adapters of this rank instead: of the matrices in ``adapted``, or all but routers'.
        """
        common, expert = self.layer_matrices(dense)
        if not rank:
            return count_parameters(common), count_parameters(expert) * self.experts
        added = [
            sum(rank * (reads + makes) for name, (reads, makes) in part.items() if name in (adapted or part))
            for part in ({k: v for k, v in common.items() if k != "router"}, expert)
        ]
        return added[0], added[1] * self.experts

    @property
    def layer_parameters(self) -> int:
        """The parameters of a layer (one with experts, if there are any), without those of norms and biases."""
        return sum(self.layer_counts())

    @property
    def layer_vectors(self) -> int:
        """The parameters of a layer's norms and biases."""
        return self.vectors or 2 * self.hidden

    @property
    def parameters(self) -> int:
        """The parameters of the model."""
        tables = self.vocab * self.hidden * (1 if self.tied else 2) + (self.rest or self.hidden)
        first = self.dense_layers * (sum(self.layer_counts(dense=True)) - self.layer_parameters)
        return self.layers * (self.layer_parameters + self.layer_vectors) + first + tables

    @property
    def active_parameters(self) -> int:
        """The parameters that a token meets: those of ``top_k`` experts a layer, and not those of the others."""
        idle = count_parameters(self.layer_matrices()[1]) * (self.experts - self.top_k)
        return self.parameters - (self.layers - self.dense_layers) * idle

    def token_flops(self, frozen: bool = False) -> float:
        """Return the operations for a token, forward and backward: six a parameter in a product (four if weights are
        frozen, and need no gradient), and causal attention.
        """
        outside = self.layers * self.layer_vectors + (self.rest or self.hidden)
        products = self.active_parameters - outside - self.vocab * self.hidden * (not self.tied)
        attention = 3.0 * self.layers * self.seq * (self.query_width + self.output_width)
        return (4.0 if frozen else 6.0) * products + attention

    def activation_bytes(
        self, rows: int, tp: int, *, sequence: bool | str = False, recompute: str = "none", flash: bool = True,
        gated: int = 4, ep: int = 1, dense: bool = False, adapted: Collection[str] | None = None, number: int = 2,
    ) -> float:  # fmt: skip
        """Return the bytes of a layer's activations for ``rows`` sequences on each of ``tp`` ranks.

        sequence    whether norms and residuals are cut along the sequence (sequence parallelism); "gathered": gathered
                    inputs of products are saved, not gathered again in backward.
        recompute   "none"; "full": only the layer's input is saved; "selective": also the outputs of attention and of
                    every second product (torchtitan's selective checkpointing by operator).
        flash       attention saves its output and a number for each row; otherwise its scores.
        gated       numbers that a gated layer saves per unit of width.
        ep          ranks that share the experts. With 1, tp cuts each expert; otherwise a rank has whole experts, and
                    a share of the sequence.
        dense       whether it is a layer without experts.
        adapted     the matrices with adapters, each of which saves a copy of its input in 32 bits; None: no adapters,
                    all weights are trained.
        number      bytes of an activation: 2, or 4 where what is not quantised is in 32 bits.

        Inputs of the products, of the norms (in 16 bits and what the norm keeps), of the activation function. For
        GPT-2's layer, this is the 34 + 5as/h of Korthikanti et al. (arXiv 2205.05198), with tp 10 + (24 + 5as/h)/t.
        Experts save the tokens sent to them, and their results, which the router's gradient needs; routing is balanced.
        """
        tokens, share, hidden = rows * self.seq, 1 / tp if sequence else 1.0, self.hidden
        mixture = bool(self.experts) and not dense
        if recompute == "full":
            return number * tokens * hidden * share
        kept, routed, split = (gated if self.gated else 2), self.top_k * mixture, 1 / tp
        if recompute == "selective":
            products = self.query_width + self.kv_width
            products += self.gated * (self.shared_ffn if mixture else self.ffn)
            return number * tokens * (2 * hidden * share + (self.output_width + products) / tp)

        def input_bytes(*names: str) -> int:
            """Return the bytes per number of what matrices with the same input save of it."""
            count = 1 if adapted is None else len({*names} & {*adapted})
            return number * min(count, 1) if adapted is None or number == 4 else 4 * count

        read = hidden * input_bytes("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj")
        wide = hidden * input_bytes("gate_proj", "up_proj")
        # RMSNorm of models in Python keeps its input in 32 bits; if its weight is trained, this is left out.
        norm = 4 if self.gated and adapted is not None else number
        norms = 2 * norm * hidden + (0 if sequence == "gathered" else read + wide)
        masks = 2 * hidden if self.dropout else 0
        attention = number * (self.query_width + self.kv_width + self.value_width + self.output_width)
        if adapted is not None and number == 2:
            attention += self.output_width * input_bytes("o_proj")
        if self.kv_rank:  # values are a view of what kv_b_proj made, keys a copy of a part of it
            norms += 2 * number * (self.q_rank + self.kv_rank)
            attention += number * (self.query_width - self.heads * self.rope)
        each = number * (kept - 1) + input_bytes("down_proj")
        feed = each * (self.shared_ffn if mixture else self.ffn)
        rest = 4 * self.heads if flash else (5 if self.dropout else number) * self.heads * self.seq
        read_whole = read + wide if sequence == "gathered" else 0
        # Of each token sent: its numbers, the expert's result, and what the expert keeps.
        sent = routed * (wide + number * hidden) * (split if ep > 1 else 1)
        sent += (routed * each * self.expert_ffn + 8 * self.experts * mixture) * split
        return tokens * (read_whole + (norms + masks) * share + (attention + feed + rest) / tp + sent)

    kept_bytes = activation_bytes  # the former name


def count_parameters(matrices: Matrices) -> int:
    return sum(reads * makes for reads, makes in matrices.values())


def read_sizes(path: Path) -> Sizes:
    """Read sizes from a TOML file with the keys of :class:`Sizes`. Raises ValueError for other keys."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    known = [one.name for one in fields(Sizes)]
    unknown = sorted(found.keys() - known)
    missing = sorted({"layers", "hidden", "heads", "ffn", "vocab", "seq"} - found.keys())
    if unknown or missing:
        between, colon = say(en=", ", zh="、"), say(en=": ", zh=" ")
        words = ((say(en="unknown", zh="不认识"), unknown), (say(en="missing", zh="缺少"), missing))
        problems = [f"{word}{colon}{between.join(names)}" for word, names in words if names]
        raise wrong(
            en=f"{path}: {'; '.join(problems)} (known: {', '.join(known)})",
            zh=f"{path}：{'；'.join(problems)}（可用：{'、'.join(known)}）",
        )
    try:
        return Sizes(**{"name": path.stem, **found})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


# Llama 3's published shapes, with sequences of 8,192 tokens.
MODELS = {
    "1B": Sizes(16, 2048, 32, 8192, 128256, 8192, 8, gated=True, tied=True, name="Llama 3.2 1B"),
    "8B": Sizes(32, 4096, 32, 14336, 128256, 8192, 8, gated=True, name="Llama 3.1 8B"),
    "70B": Sizes(80, 8192, 64, 28672, 128256, 8192, 8, gated=True, name="Llama 3.1 70B"),
}
