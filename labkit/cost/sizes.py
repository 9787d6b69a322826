"""A transformer from its sizes: parameters, operations, and the bytes that a layer saves for backward."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from ..base.language import say, wrong
from ..base.numbers import integer


@dataclass(frozen=True)
class Sizes:
    """A decoder's sizes.

    heads, kv_heads   of attention; fewer kv_heads share keys and values.
    ffn               the width of the feed-forward part; ``gated`` if it has three matrices and not two.
    seq               tokens in a sequence.
    tied              whether the output shares the embedding's weights.
    dropout           whether masks of dropout are kept, as in GPT-2.
    name              what a table calls it.
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

    def __post_init__(self) -> None:
        for one in ("layers", "hidden", "heads", "ffn", "vocab", "seq"):
            integer(one, getattr(self, one), 1)
        integer("kv_heads", self.kv_heads, 0)
        for name, parts, of in (("heads", self.heads, "hidden"), ("kv_heads", self.kv_heads or 1, "heads")):
            if (total := getattr(self, of)) % parts:
                raise wrong(
                    en=f"{name}={parts} does not divide {of}={total}: choose a divisor of it",
                    zh=f"{name}={parts} 不能整除 {of}={total}：请选它的约数",
                )

    @property
    def kv_width(self) -> int:
        """Numbers of a token's keys (and as many of its values)."""
        return self.hidden * (self.kv_heads or self.heads) // self.heads

    @property
    def layer_parameters(self) -> int:
        """The parameters of a layer, without those of the norms."""
        attention = 2 * self.hidden * (self.hidden + self.kv_width)
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def parameters(self) -> int:
        """The parameters of the model."""
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (self.layer_parameters + 2 * self.hidden) + tables + self.hidden

    def token_flops(self) -> float:
        """Return the operations for a token, forward and backward: six a parameter in a product, and causal
        attention.
        """
        products = self.layers * self.layer_parameters + self.vocab * self.hidden
        return 6.0 * products + 6.0 * self.layers * self.seq * self.hidden

    def activation_bytes(
        self, rows: int, tp: int, *, sequence: bool | str = False, recompute: str = "none", flash: bool = True,
        gated: int = 4,
    ) -> float:  # fmt: skip
        """Return the bytes of a layer's activations in 16 bits for ``rows`` sequences on each of ``tp`` ranks.

        sequence    whether norms and residuals are cut along the sequence (sequence parallelism); "gathered": gathered
                    inputs of products are saved, not gathered again in backward.
        recompute   "none"; "full": only the layer's input is saved; "selective": also the outputs of attention and of
                    every second product (torchtitan's selective checkpointing by operator).
        flash       attention saves its output and a number for each row; otherwise its scores.
        gated       numbers that a gated layer saves per unit of width.

        Inputs of the products, of the norms (in 16 bits and what the norm keeps), of the activation function. For
        GPT-2's layer, this is the 34 + 5as/h of Korthikanti et al. (arXiv 2205.05198), with tp 10 + (24 + 5as/h)/t.
        """
        tokens, share = rows * self.seq, 1 / tp if sequence else 1.0
        if recompute == "full":
            return 2.0 * tokens * self.hidden * share
        if recompute == "selective":
            products = self.hidden + self.kv_width + self.gated * self.ffn
            return 2.0 * tokens * (2 * self.hidden * share + (self.hidden + products) / tp)
        read = 2 * 2 * self.hidden  # outputs of the norms, which the products read
        norms = 2 * 2 * self.hidden + (0 if sequence == "gathered" else read)
        masks = 2 * self.hidden if self.dropout else 0
        attention = 2 * (2 * self.hidden + 2 * self.kv_width)  # queries, keys, values, output
        feed = 2 * (gated if self.gated else 2) * self.ffn
        rest = 4 * self.heads if flash else (5 if self.dropout else 2) * self.heads * self.seq
        read_whole = read if sequence == "gathered" else 0
        return tokens * (read_whole + (norms + masks) * share + (attention + feed + rest) / tp)

    kept_bytes = activation_bytes  # the former name


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
