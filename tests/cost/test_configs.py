"""Sizes from config.json: published counts, mixtures of experts and LoRA against measured peaks, what is refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

import labkit
from labkit.cost.configs import read_config, read_model
from labkit.cost.hardware import ACCELERATORS, PROFILES, all_reduce_seconds
from labkit.cost.plan import forecast, memory
from labkit.cost.search import plans
from labkit.cost.settings import SOFTWARE, Plan
from labkit.cost.sizes import MODELS, Sizes
from labkit_cli import main

H100 = ACCELERATORS["h100"]


def _common(layers: int, hidden: int, heads: int, ffn: int, vocab: int, kv_heads: int = 0) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": ffn,
        "vocab_size": vocab, "num_key_value_heads": kv_heads or heads, "max_position_embeddings": 8192,
    }  # fmt: skip


def _latent(experts: int, shared: int, first: int, routed: int, width: int, q: int | None) -> dict[str, Any]:
    return {
        "n_routed_experts": experts, "n_shared_experts": shared, "first_k_dense_replace": first,
        "num_experts_per_tok": routed, "moe_intermediate_size": width, "q_lora_rank": q, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip


# The shapes of these models' config.json, and the parameters that their pages on the Hugging Face Hub count.
CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    "llama": (_common(32, 4096, 32, 14336, 128256, 8), 8_030_261_248),
    "mistral": (_common(32, 4096, 32, 14336, 32000, 8), 7_241_732_096),
    "qwen2": (_common(24, 896, 14, 4864, 151936, 2) | {"tie_word_embeddings": True}, 494_032_768),
    "qwen3": (_common(36, 4096, 32, 12288, 151936, 8) | {"head_dim": 128}, 8_190_735_360),
    "mixtral": (
        _common(32, 4096, 32, 14336, 32000, 8) | {"num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
    ),
    "qwen2_moe": (
        _common(28, 3584, 28, 18944, 151936, 4)
        | {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560}
        | {"shared_expert_intermediate_size": 20480},
        57_408_658_944,
    ),
    "qwen3_moe": (
        _common(48, 2048, 32, 6144, 151936, 4)
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "head_dim": 128},
        30_532_122_624,
    ),
    "deepseek_v2": (_common(27, 2048, 16, 10944, 102400) | _latent(64, 2, 1, 6, 1408, None), 15_706_484_224),
    "deepseek_v3": (_common(61, 7168, 128, 18432, 129280) | _latent(256, 1, 3, 8, 2048, 1536), 671_026_419_200),
    "gpt_neox": (_common(44, 6144, 64, 24576, 50432), 20_554_567_680),
    "gpt2": ({"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}, 124_439_808),
}  # fmt: skip


def _written(tmp_path: Path, kind: str, **changes: Any) -> Path:
    config = {"model_type": kind, **CONFIGS.get(kind, ({}, 0))[0], **changes}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "missing"}), "utf-8")
    return path


@pytest.mark.parametrize("kind", CONFIGS)
def test_counts_are_the_published_ones(tmp_path: Path, kind: str) -> None:
    sizes = read_config(_written(tmp_path, kind))
    assert sizes.parameters == CONFIGS[kind][1]
    assert sizes.seq == (1024 if kind == "gpt2" else 4096)
    assert read_model(tmp_path, 512) == replace(sizes, seq=512)
    assert sizes.name == tmp_path.name


@pytest.mark.parametrize(
    ("kind", "active"), [("mixtral", 12_879_925_248), ("qwen3_moe", 3_353_032_704), ("llama", 8_030_261_248)]
)
def test_active_parameters_leave_out_idle_experts(tmp_path: Path, kind: str, active: int) -> None:
    """12.9 and 3.3 billion, as the models' makers say."""
    assert read_config(_written(tmp_path, kind)).active_parameters == active


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in CONFIGS), ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 64}),
        ("llama", {"tie_word_embeddings": True}), ("qwen2_moe", {"qkv_bias": False, "decoder_sparse_step": 2}),
        ("qwen3_moe", {"mlp_only_layers": [0, 3], "attention_bias": True}), ("deepseek_v2", {"q_lora_rank": 24}),
        ("deepseek_v3", {"attention_bias": True, "first_k_dense_replace": 0}), ("gpt2", {"n_inner": 100}),
        ("gpt_neox", {"attention_bias": False}),
    ],
)  # fmt: skip
def test_counts_are_those_of_transformers(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    layers = {"n_layer": 4} if kind == "gpt2" else {"num_hidden_layers": 4, "vocab_size": 500}
    path = _written(tmp_path, kind, **layers, **changes)
    config = transformers.AutoConfig.for_model(**json.loads(path.read_text("utf-8")))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    bias = sum(one.numel() for name, one in model.named_buffers() if "correction_bias" in name)
    assert read_config(path).parameters == sum(one.numel() for one in model.parameters()) + bias
    config.save_pretrained(tmp_path / "saved")  # with the keys of this version of transformers
    assert read_model(tmp_path / "saved").parameters == read_config(path).parameters


@pytest.mark.parametrize(("kind", "changes", "words"), [
    ("mamba", {"hidden_size": 64}, "'mamba' is not known; it lacks num_hidden_layers, num_attention_heads"),
    ("phi3", CONFIGS["llama"][0], r"model_type 'phi3' is not known\. Known are llama"),
    ("mixtral", {"num_local_experts": "missing"}, "model_type 'mixtral' needs num_local_experts"),
    ("deepseek_v3", {"kv_lora_rank": None}, "model_type 'deepseek_v3' needs kv_lora_rank"),
    ("llama", {"num_attention_heads": 31}, "config.json: heads=31 does not divide hidden=4096"),
    ("qwen3_moe", {"num_experts_per_tok": 129}, "config.json: top_k must be from 0 to 128, got 129"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        read_config(_written(tmp_path, kind, **changes))


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    for text in ("[]", "{", "7"):
        (tmp_path / "config.json").write_text(text, "utf-8")
        with pytest.raises(ValueError, match=r"config\.json"):
            read_model(tmp_path)
    with pytest.raises(ValueError, match=r"none\.json"):
        read_model(tmp_path / "none.json")


# GiB allocated in MooreThreads/SimuMax, docs/b200 (v1.2): Megatron-LM's distributed optimizer on 8 B200, 4,096 tokens,
# gradients in 32 bits, no recomputation. The model of memory was written before these rows were looked at.
@pytest.mark.parametrize(
    ("kind", "dp", "pp", "measured"),
    [("v2", 8, 1, 45.63), ("v2", 4, 2, 44.70), ("deepseek_v3", 8, 1, 104.30), ("deepseek_v3", 4, 2, 114.00)],
)
def test_peaks_of_experts_are_those_that_were_measured(
    tmp_path: Path, kind: str, dp: int, pp: int, measured: float
) -> None:
    shape = {"num_hidden_layers": 4, "first_k_dense_replace": 1}
    if kind == "v2":  # DeepSeek-V2 of 236 billion
        shape |= _common(4, 5120, 128, 12288, 102400) | _latent(160, 2, 1, 6, 1536, 1536)
    sizes = read_config(_written(tmp_path, "deepseek_v2" if kind == "v2" else kind, **shape))
    found = memory(sizes, Plan(dp, 1, pp, 1, 1, 4, grads=4, ep=dp), SOFTWARE["megatron"])
    assert sum(found.values()) / 2**30 == pytest.approx(measured, rel=0.11)


def test_experts_are_spread_over_their_ranks(tmp_path: Path) -> None:
    sizes = read_config(_written(tmp_path, "mixtral"))
    alone, shared = (memory(sizes, Plan(dp=8, stage=1, ep=ep)) for ep in (1, 8))
    experts = 32 * 8 * 3 * 4096 * 14336
    assert alone["weights"] - shared["weights"] == 2 * experts * 7 / 8
    assert (
        alone["optimizer"] == shared["optimizer"]
    )  # ZeRO shards it in both cases, over fewer ranks for experts
    assert (
        memory(sizes, Plan(dp=8, stage=3, ep=8))["weights"] == memory(sizes, Plan(dp=8, stage=3))["weights"]
    )
    parts = [forecast(sizes, Plan(dp=8, stage=1, ep=ep), H100).parts for ep in (1, 8)]
    assert parts[0]["experts"] == 0 < parts[1]["experts"]
    with pytest.raises(ValueError, match="ep=3 does not divide experts=8"):
        forecast(sizes, Plan(dp=6, stage=1, ep=3), H100)


def test_searches_spread_experts(tmp_path: Path) -> None:
    found = plans(read_config(_written(tmp_path, "mixtral")), 16, H100, 512)
    assert {one.plan.ep for one in found.fitting} >= {2, 4, 8}
    assert all((one.plan.dp * one.plan.tp) % one.plan.ep == 0 for one in (*found.fitting, *found.others))
    assert "  ep" in found.table()
    assert "  ep" not in plans(MODELS["1B"], 8, H100, 64).table()
    prime = plans(read_config(_written(tmp_path, "deepseek_v3")), 512, H100, 2048)  # 61 layers
    assert {one.plan.pp for one in (*prime.fitting, *prime.others)} == {1, 2, 4, 8}


def test_only_adapters_have_gradients_and_moments(tmp_path: Path) -> None:
    """Rank 8 on queries and values of Llama 2 7B: 4,194,304 parameters, as LitGPT's table of resources counts."""
    llama = Sizes(32, 4096, 32, 11008, 32000, 1304, gated=True)
    plan = Plan(stage=0, lora=8, adapted=("q_proj", "v_proj"))
    found = memory(llama, plan)
    assert (found["gradients"], found["optimizer"]) == (2 * 4_194_304, 12 * 4_194_304)
    inner = 32 * llama.layer_parameters
    frozen = 2 * (llama.parameters - llama.hidden)
    assert found["weights"] == frozen + 2 * 4_194_304
    four = memory(llama, replace(plan, bits=4))  # what is not quantised is in 32 bits
    assert found["weights"] - four["weights"] == inner * (2 - 0.5625) - 2 * (frozen / 2 - inner)
    numbers = 1304 * 4096

    def count_kept(*names: str, number: int = 2) -> float:
        """Return the bytes that a layer keeps, for each number of its input."""
        return llama.activation_bytes(1, 1, adapted=names, number=number) / numbers

    assert count_kept("q_proj", "v_proj") - count_kept("q_proj") == 4  # each has a copy of its own in 32 bits
    # With 4-bit weights, the input is in 32 bits already, and both keep the same tensor.
    assert count_kept("q_proj", "v_proj", number=4) == count_kept("q_proj", number=4)
    assert count_kept("q_proj", "down_proj") - count_kept("q_proj") == pytest.approx(4 * 11008 / 4096)
    assert llama.activation_bytes(1, 1) / numbers - count_kept("q_proj") == pytest.approx(
        2 * 11008 / 4096 - 4
    )
    slow, quick = (forecast(llama, one, H100).parts["compute"] for one in (Plan(stage=0), plan))
    assert 0.6 * slow < quick < 0.75 * slow  # two of three products, and attention
    mixture = read_config(_written(tmp_path, "mixtral"))
    assert mixture.layer_counts(rank=2, adapted=("up_proj",)) == (0, 8 * 2 * (4096 + 14336))
    with pytest.raises(ValueError, match="lora must be one of 'down_proj'.*got 'c_attn'"):
        forecast(llama, replace(plan, adapted=("c_attn",)), H100)


# Layers, hidden, heads, kv_heads, ffn, vocab, tied; sequences of so many tokens, rank, adapters, bits, recomputation;
# GiB that torch allocated. The first three are in LitGPT's tutorials/resource-tables.md (in GB), the others in
# Anassbzdd/fitcheck, data/measurements, 15 and 21 September 2026: transformers 5.17, PEFT 0.20, Tesla T4. Those with 4
# bits were opened when the terms had been written.
@pytest.mark.parametrize(("shape", "rows", "seq", "lora", "measured"), [
    ((32, 4096, 32, 32, 11008, 32000, False), 1, 1304, (8, "qv", 16, False), 21.30e9 / 2**30),
    ((32, 4096, 32, 32, 11008, 32000, False), 2, 1304, (8, "qv", 16, False), 29.07e9 / 2**30),
    ((40, 5120, 40, 40, 13824, 32000, False), 1, 1304, (8, "qv", 16, False), 38.12e9 / 2**30),
    ((28, 1536, 12, 2, 8960, 151936, True), 2, 1024, (32, "qkvo", 16, True), 7401.8 / 1024),
    ((22, 2048, 32, 4, 5632, 32000, False), 2, 2048, (32, "qkvo", 16, True), 4354.1 / 1024),
    ((28, 3584, 28, 4, 18944, 152064, False), 1, 1024, (16, "qkvo", 4, True), 10585.8 / 1024),
    ((32, 4096, 32, 8, 14336, 32768, False), 1, 1024, (16, "qkvo", 4, True), 6056.3 / 1024),
    ((28, 3072, 24, 8, 8192, 128256, True), 1, 1024, (16, "qkvo", 4, True), 5495.0 / 1024),
    ((24, 2048, 16, 16, 5504, 32256, False), 1, 1024, (16, "qkvo", 4, True), 1971.7 / 1024),
])  # fmt: skip
def test_peaks_of_lora_are_those_that_were_measured(
    shape: tuple[int, int, int, int, int, int, bool], rows: int, seq: int, lora: tuple[int, str, int, bool],
    measured: float,
) -> None:  # fmt: skip
    layers, hidden, heads, kv_heads, ffn, vocab, tied = shape
    rank, letters, bits, again = lora
    adapted = tuple(f"{letter}_proj" for letter in letters)
    sizes = Sizes(layers, hidden, heads, ffn, vocab, seq, kv_heads, gated=True, tied=tied)
    plan = Plan(stage=0, micro=rows, recompute=again, lora=rank, adapted=adapted, bits=bits)
    found = memory(sizes, plan, SOFTWARE["fsdp"])
    assert sum(found.values()) / 2**30 == pytest.approx(measured, rel=0.025)


def test_the_micro_batch_that_is_solved_for_is_the_largest() -> None:
    found = plans(MODELS["8B"], 8, H100, 1024, solve=True)
    assert {one.plan.micro for one in found.fitting} - {1, 2, 4, 8, 16}
    for one in found.fitting:
        plan, more = one.plan, one.plan.micro + 1
        most = 1024 // plan.dp // plan.pp
        larger = replace(plan, micro=more, many=1024 // (plan.dp * more))
        assert more > most or not forecast(MODELS["8B"], larger, H100).fits
    (single,) = plans(MODELS["8B"], 8, H100, 1024, solve=True, tp=2, pp=1, stage=3, recompute=True).fitting
    assert (single.plan.tp, single.plan.dp, single.plan.stage) == (2, 4, 3)


def test_a_layout_that_is_given_is_kept() -> None:
    short = replace(MODELS["8B"], seq=4096)
    (one,) = plans(short, 8, H100, 48, tp=2, pp=1, micro=3, recompute="selective", stage=3, grads=4).fitting
    assert (one.plan.micro, one.plan.many, one.plan.recompute, one.plan.grads) == (3, 4, "selective", 4)
    with pytest.raises(ValueError, match="cannot share a batch of 64 sequences evenly, tp=3"):
        plans(MODELS["8B"], 8, H100, 64, tp=3)
    with pytest.raises(ValueError, match="tp=64 does not divide heads=32"):
        plans(MODELS["8B"], 64, H100, 64, tp=64)


@pytest.mark.parametrize(("options", "words"), [
    ("--gpus 8 train.py --lr 1", "--model plans without a script: leave out 'train.py --lr 1'"),
    ("--gpus 8 --layout tpp=3", "--layout: 'tpp=3' is not one of dp, tp"),
    ("--gpus 8 --layout tp", "--layout: 'tp' is not one of dp, tp"),
    ("--gpus 8 --lora q_proj", "--lora must begin with a rank of at least 1"),
    ("--gpus 8 --lora 8,foo", "lora must be one of"),
    ("--gpus 8 --load-in-4bit", "--load-in-4bit needs --lora RANK"),
])  # fmt: skip
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, words: str
) -> None:
    assert main(["plan", "--model", str(_written(tmp_path, "llama")), *options.split()]) == 2
    assert words in capsys.readouterr().err


def test_options_for_models_are_refused_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--seq 4", "--solve batch", "--layout tp=2", "--lora 8", "--gpus 8", "--batch 8"):
        assert main(["plan", *option.split(), "train.py"]) == 2
        assert f"{option.split()[0]} needs --model FILE" in capsys.readouterr().err


def test_a_script_beside_a_model_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    arguments = ["plan", "--model", str(_written(tmp_path, "llama")), "--gpus", "8", "train.py"]
    code = f"import sys; from labkit_cli import main; print(main({arguments}), 'torch' in sys.modules)"
    assert run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "2 False\n"


def test_the_command_plans_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _written(tmp_path, "qwen3_moe")
    options = (
        "--gpus 1 --hardware h200 --seq 2048 --lora 16,q_proj,v_proj --load-in-4bit --solve batch --top 1"
    )
    assert main(["plan", "--model", str(path), *options.split()]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "30.5 billion parameters" in said[0]
    assert "of 2048 tokens" in said[0]
    same = labkit.plan(
        path, gpus=1, hardware="h200", seq=2048, solve=True, lora=16, adapted=("q_proj", "v_proj"), bits=4
    )
    assert str(same).splitlines()[2].split() == said[2].split()


def test_rings_of_neighbours_share_the_network() -> None:
    """Eight rings, each of one GPU of each of two machines, take eight times as long as one ring of these bytes."""
    links = replace(PROFILES["h200"], latency=0.0, network_latency=0.0, reduce_bandwidth=1e15, crowding=0.0)
    one, eight = (all_reduce_seconds(1e9, links, 2, span) for span in (2 * 8 // 8, 16))
    assert one < 1e-5  # within a machine
    alone = 2 * (1e9 / 2) / links.network_bandwidth if links.network_bandwidth else 0.0
    assert eight == pytest.approx(8 * alone)


def test_rings_on_rails_of_their_own_do_not_crowd() -> None:
    """A pair of machines is a single hop; beyond it, a ring of all GPUs slows down more than eight side by side."""
    links = ACCELERATORS["h100"].links
    assert links.network_bandwidth
    two, many = (links.message_seconds(1e9, span) for span in (16, 256))
    assert two == pytest.approx(1e9 / links.network_bandwidth)
    assert many == pytest.approx(two * (1 + 4 * links.crowding))
    assert links.message_seconds(1e9 / 8, 256, 8) == pytest.approx(two * (1 + 4 * links.crowding / 8))


def test_each_rank_of_a_tensor_group_sends_its_part_to_the_next_stage() -> None:
    """Megatron-LM's scatter and gather (Narayanan et al., arXiv 2104.04473, 4.1)."""
    one, four = (
        forecast(MODELS["8B"], Plan(dp=1, tp=tp, pp=4, stage=0, many=8), H100).parts for tp in (1, 4)
    )
    start = 8 * 2 * H100.links.start
    between = {1: H100.links.reduce_bandwidth, 4: (H100.links.network_bandwidth or 0) / 8}
    sent = {tp: 8 * 2 * 2 * 8192 * 4096 / tp / between[tp] for tp in (1, 4)}
    assert one["pipeline"] == pytest.approx(sent[1] + start)
    assert four["pipeline"] == pytest.approx(sent[4] + start)
