"""Read a model's sizes from its ``config.json``, as Hugging Face's transformers writes it.

The counts of parameters are exact: norms, biases and position tables are what transformers' modelling code has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.files import reason
from ..base.language import say, wrong
from .sizes import Sizes, read_sizes

DEFAULT_SEQ = 4096  # tokens, if the user does not say: a configuration says only how many the model can read

# For each family of models: field of Sizes -> key of config.json, beside the four that all have.
_DENSE = {"ffn": "intermediate_size"}
_MIXTURE = {"expert_ffn": "moe_intermediate_size", "experts": "num_experts", "top_k": "num_experts_per_tok"}
_LATENT = {
    **_DENSE, **_MIXTURE, "experts": "n_routed_experts", "kv_rank": "kv_lora_rank", "rope": "qk_rope_head_dim",
    "value_dim": "v_head_dim", "head_dim": "qk_nope_head_dim",
}  # fmt: skip
_FAMILIES: dict[str, dict[str, str]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gpt_neox"), _DENSE),
    "mixtral": {**_MIXTURE, "expert_ffn": "intermediate_size", "experts": "num_local_experts"},
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), {**_DENSE, **_MIXTURE}),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _LATENT),
    "gpt2": {},
}
_COMMON = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads", "vocab": "vocab_size",
}  # fmt: skip
_GPT2 = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size"}


def read_model(path: Path, seq: int = 0) -> Sizes:
    """Read sizes from a TOML file, a ``config.json``, or a folder that has one; ``seq``: tokens in a sequence."""
    if path.suffix == ".toml":
        sizes = read_sizes(path)
        return replace(sizes, seq=seq or sizes.seq)
    return read_config(path / "config.json" if path.is_dir() else path, seq)


def read_config(path: Path, seq: int = 0) -> Sizes:
    """Read a model's ``config.json``; ``seq``: tokens in a sequence (default 4,096, or what the model can read).

    Raises ValueError for model types that are not known, naming the keys that are missing, and for impossible sizes.
    """
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {reason(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(config, dict):
        raise wrong(en=f"{path}: not the config.json of a model", zh=f"{path}：不是模型的 config.json")
    kind = config.get("model_type")
    if kind == "qwen3_moe" and "num_local_experts" in config:  # as transformers 5 writes it
        config = {"num_experts": config["num_local_experts"], **config}
    # An unknown type is read as a dense model, to name the keys that it lacks.
    names = (_GPT2 if kind == "gpt2" else _COMMON) | _FAMILIES.get(str(kind), _DENSE)
    missing = ", ".join(key for key in names.values() if not isinstance(config.get(key), int))
    if kind not in _FAMILIES:
        lacks = say(en=f"; it lacks {missing}", zh=f"；还缺少 {missing}") if missing else ""
        raise wrong(
            en=f"{path}: model_type {kind!r} is not known{lacks}. Known are {', '.join(_FAMILIES)}; "
            "for another, write its sizes into a TOML file (docs/plan.md)",
            zh=f"{path}：不认识 model_type {kind!r}{lacks}。可用的有 {'、'.join(_FAMILIES)}；"
            "其他模型请把大小写进 TOML 文件（见 docs/plan.md）",
        )
    if missing:
        raise wrong(
            en=f"{path}: model_type {kind!r} needs {missing}",
            zh=f"{path}：model_type {kind!r} 还缺少 {missing}",
        )
    try:
        return _sizes(str(kind), config, {name: config[key] for name, key in names.items()}, path, seq)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _sizes(kind: str, config: Mapping[str, Any], found: dict[str, int], path: Path, seq: int) -> Sizes:
    def number(key: str, other: int = 0) -> int:
        return config[key] if config.get(key) is not None else other

    layernorm_family = kind in ("gpt2", "gpt_neox")
    hidden, layers = found["hidden"], found["layers"]
    found.setdefault("ffn", number("n_inner", 4 * hidden) if kind == "gpt2" else found.get("expert_ffn", 0))
    found["kv_heads"] = 0 if layernorm_family or "kv_rank" in found else number("num_key_value_heads")
    if kind.startswith(("llama", "mistral", "mixtral", "qwen")):
        found["head_dim"] = number("head_dim", 128 if kind.startswith("qwen3") else 0)
    if "kv_rank" in found:
        found["head_dim"] += found["rope"]
        found["q_rank"] = number("q_lora_rank")
        found["dense_layers"] = min(number("first_k_dense_replace"), layers)
        found["shared_ffn"] = number("n_shared_experts") * found["expert_ffn"]
    elif kind.endswith("_moe"):
        step, only = number("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
        found["dense_layers"] = sum(at in only or (at + 1) % step > 0 for at in range(layers))
        found["shared_ffn"] = number("shared_expert_intermediate_size") if kind == "qwen2_moe" else 0
    longest = number("n_positions" if kind == "gpt2" else "max_position_embeddings", DEFAULT_SEQ)
    called = str(config.get("_name_or_path") or (path.parent.name if path.stem == "config" else path.stem))
    sizes = Sizes(
        **found, seq=seq or min(DEFAULT_SEQ, longest), gated=not layernorm_family, dropout=kind == "gpt2",
        tied=bool(config.get("tie_word_embeddings", kind == "gpt2")), name=called.split("/")[-1],
    )  # fmt: skip
    # The last norm (GPT's has a bias), and GPT-2's table of positions.
    rest = hidden * (2 if layernorm_family else 1) + (longest * hidden if kind == "gpt2" else 0)
    if kind in (
        "qwen2_moe",
        "deepseek_v3",
        "kimi_k2",
    ):  # Qwen2: a gate per layer. DeepSeek: load-balancing biases
        rest += (layers - sizes.dense_layers) * (hidden if kind == "qwen2_moe" else sizes.experts)
    return replace(sizes, vectors=_count_vectors(kind, config, sizes), rest=rest)


def _count_vectors(kind: str, config: Mapping[str, Any], sizes: Sizes) -> int:
    """Return the numbers in the norms and biases of a layer."""
    hidden, inner = sizes.hidden, sizes.query_width + sizes.kv_width + sizes.value_width
    if kind in ("gpt2", "gpt_neox"):
        # Two norms with biases (4 hidden), the biases of the feed-forward layers and of attention.
        return 5 * hidden + sizes.ffn + (inner + hidden) * bool(config.get("attention_bias", True))
    count, bias = 2 * hidden, bool(config.get("attention_bias"))
    if sizes.kv_rank:
        count += sizes.q_rank + sizes.kv_rank
        inner = sizes.q_rank + sizes.kv_rank + sizes.rope
    elif kind.startswith("qwen3"):
        count += 2 * sizes.head_dim
    if kind.startswith("qwen2"):
        return count + inner * bool(config.get("qkv_bias", True))
    return count + bias * (inner + hidden) + bool(config.get("mlp_bias")) * (2 * sizes.ffn + hidden)
