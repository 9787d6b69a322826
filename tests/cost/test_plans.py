"""Plans from sizes: known bytes, what is left out, and the model's errors on the rows that it was frozen before."""

import re
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import labkit
from labkit.cost.hardware import ACCELERATORS, accelerator
from labkit.cost.plan import PEAK_ABOVE, PEAK_BELOW, forecast, memory
from labkit.cost.search import plans
from labkit.cost.settings import SOFTWARE, Plan
from labkit.cost.sizes import MODELS, Sizes, read_sizes
from labkit_cli import main
from labkit_cli.measured_runs import errors, read_rows

ROOT = Path(__file__).parents[2]
PLANS = ROOT / "tools" / "plans"
LLAMA = MODELS["8B"]
GPT2_22B = Sizes(48, 6144, 64, 4 * 6144, 51200, 2048, tied=True, dropout=True)
H100 = ACCELERATORS["h100"]


def test_parameters_are_the_published_ones() -> None:
    assert LLAMA.parameters == 8_030_261_248
    assert MODELS["70B"].parameters == 70_553_706_496
    assert MODELS["1B"].parameters == 1_235_814_400


def test_states_after_a_step_are_a_measured_runs() -> None:
    """Llama 3.1 8B on 8 H100, the optimizer over 8 ranks: 44,271,689,728 bytes were measured."""
    found = memory(LLAMA, Plan(dp=8, stage=1))
    states = found["weights"] + found["gradients"] + found["optimizer"]
    assert states == pytest.approx(44_271_689_728, rel=0.003)


def test_each_stage_shards_what_it_is_to() -> None:
    by_stage = [memory(LLAMA, Plan(dp=8, stage=stage)) for stage in range(4)]
    whole = by_stage[0]
    kinds = ("optimizer", "gradients", "weights")
    for stage in (1, 2, 3):
        for kind in kinds:
            assert by_stage[stage][kind] == whole[kind] / (8 if kind in kinds[:stage] else 1)


def test_no_sync_sums_whole_gradients() -> None:
    """FSDP2 at the start of the last backward: four bytes of each gradient, not of a shard; and one reduction."""
    synced = Plan(dp=8, stage=3, micro=1, many=4, grads=4)
    whole = replace(synced, no_sync=True)
    parameters = memory(LLAMA, Plan(dp=8, stage=0))["gradients"] / 2
    assert memory(LLAMA, synced)["gradients"] == 4 * parameters / 8
    assert memory(LLAMA, whole)["gradients"] == 4 * parameters
    once = replace(whole, many=1)  # nothing is summed
    assert memory(LLAMA, once) == memory(LLAMA, replace(once, no_sync=False))
    slow = ACCELERATORS["4090"]
    assert forecast(LLAMA, whole, slow).seconds < forecast(LLAMA, synced, slow).seconds


def test_buckets_hold_what_a_gpu_has_of_a_layer() -> None:
    """Two layers' weights and gradients on the way, and the root's, which FSDP keeps gathered."""
    alone, shared = (memory(LLAMA, Plan(dp=4, tp=tp, stage=3, micro=4))["buckets"] for tp in (1, 2))
    assert alone == 2 * shared == 8 * LLAMA.layer_parameters + 4 * LLAMA.vocab * LLAMA.hidden


def test_activations_are_korthikantis() -> None:
    """34 bytes a number of a layer without the scores: of GPT-2's layer, with dropout's masks, within a tenth."""
    kept, numbers = GPT2_22B.activation_bytes, GPT2_22B.seq * GPT2_22B.hidden
    assert kept(1, 1) == pytest.approx(34 * numbers, rel=0.1)
    assert kept(1, 8, sequence=True) == pytest.approx(kept(1, 1) / 8)
    assert kept(1, 8) == pytest.approx((10 + 24 / 8) * numbers, rel=0.1)
    assert kept(1, 8, sequence=True, recompute="full") == 2 * numbers / 8
    scores = kept(1, 8, flash=False) - kept(1, 8)
    assert scores == pytest.approx(5 * GPT2_22B.heads * GPT2_22B.seq**2 / 8, rel=0.01)


def test_logits_are_the_last_stages() -> None:
    wide, narrow = (Sizes(2, 2048, 32, 8192, vocab, 4096, gated=True, tied=True) for vocab in (131_072, 4096))
    more = memory(wide, Plan(pp=2, stage=0, micro=4))["activations"]
    assert more - memory(narrow, Plan(pp=2, stage=0, micro=4))["activations"] > 4 * 4 * 4096 * (
        131_072 - 4096
    )


def test_ranks_of_a_tensor_group_share_the_logits_if_their_trainer_does() -> None:
    """Megatron-LM's loss does; PyTorch's column-wise head with replicated output does not."""
    wide = Sizes(2, 512, 8, 1024, 131_072, 4096)
    for name, ranks in (("megatron", 4), ("fsdp", 1)):
        software = SOFTWARE[name]
        found = memory(wide, Plan(tp=4, stage=0, micro=4), software)["activations"]
        assert found == pytest.approx(software.logits * 4 * 4096 * 131_072 / ranks, rel=0.1)


def test_without_zero_there_are_none_of_its_buffers() -> None:
    """Of vTrain's runs without ZeRO, none may be said not to fit (tools/plans/vtrain_multi.csv): all of them ran."""
    software, layout = SOFTWARE["megatron-2021"], {"dp": 8, "tp": 8, "recompute": True}
    with_zero, without = (memory(GPT2_22B, Plan(stage=stage, **layout), software) for stage in (1, 0))
    # The peak is the optimizer's step, with gradients in 32 bits and Adam's temporary.
    assert without["activations"] == 0
    assert without["buckets"] - (4 + 2) * GPT2_22B.parameters / 8 < 2 * 5e8 < with_zero["buckets"]


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    small = Sizes(8, 512, 8, 2048, 1000, 2048)
    few, many = (memory(small, Plan(pp=4, stage=0, micro=16, many=many))["activations"] for many in (1, 8))
    assert many > 3 * few


@pytest.mark.parametrize(
    ("dp", "tp", "pp", "micro", "measured"),
    [(16, 1, 1, 4, 42900), (1, 1, 16, 4, 42592), (1, 2, 8, 8, 45800), (1, 8, 2, 32, 61477), (2, 2, 2, 1, 8570)],
)  # fmt: skip
def test_peaks_are_those_that_nanotron_measured(dp: int, tp: int, pp: int, micro: int, measured: int) -> None:
    """MiB allocated in huggingface.co/nanotron/old_bench: ZeRO-1, 1,024 sequences, inputs gathered and kept."""
    llama = Sizes(24, 2048, 32, 4096, 50257, 4096, gated=True, tied=True)
    plan = Plan(dp, tp, pp, 1, micro, 1024 // dp // micro, sp="gathered", grads=4, spread="cost")
    assert sum(memory(llama, plan, SOFTWARE["nanotron"]).values()) / 2**20 == pytest.approx(
        measured, rel=0.01
    )


@pytest.mark.parametrize(("sizes", "plan", "words"), [
    ({"heads": 31}, {}, "heads=31 does not divide hidden=6144"),
    ({"kv_heads": 7}, {}, "kv_heads=7 does not divide heads=64"),
    ({}, {"tp": 3}, "tp=3 does not divide heads=64"),
    ({"kv_heads": 8, "heads": 96}, {"tp": 12}, "tp=12 does not divide kv_heads=8"),
    ({}, {"pp": 5}, r"pp · chunks=5 does not divide layers=48.*spread=\"uneven\""),
    ({}, {"pp": 96, "spread": "uneven"}, "pp must be from 1 to 48, got 96"),
    ({}, {"dp": 6, "group": 4}, "group=4 does not divide dp=6"),
    ({}, {"tp": 0}, "tp must be at least 1, got 0"),
    ({}, {"grads": 3}, "grads must be one of '2', '4'"),
    ({}, {"spread": "odd"}, "spread must be one of"),
])  # fmt: skip
def test_what_cannot_be_cut_is_refused(sizes: dict[str, int], plan: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        forecast(replace(GPT2_22B, **sizes), Plan(**{"stage": 0, **plan}), H100)


_CELLS = {
    "set": "a", "gpu": "h100", "layers": 24, "hidden": 2048, "heads": 32, "ffn": 8192, "vocab": 51200, "seq": 2048,
    "dp": 8, "tp": 1, "pp": 1, "stage": 0, "micro": 1, "many": 4, "trainer": "megatron", "seconds": 1.5, "peak_GiB": "",
}  # fmt: skip


def _table(tmp_path: Path, *changes: dict[str, object]) -> Path:
    path, rows = tmp_path / "rows.csv", [_CELLS | one for one in changes]
    names = list(dict.fromkeys(name for one in rows for name in one))
    lines = [",".join(str(one.get(name, "")) for name in names) for one in rows]
    path.write_text("\n".join([",".join(names), *lines]), "utf-8")
    return path


@pytest.mark.parametrize(("change", "words"), [
    ({"heads": 31}, "heads=31 does not divide hidden=2048"),
    ({"peak_GiB": "abc"}, "column peak_GiB: 'abc' is no number"),
    ({"gpu": "h999"}, "h999"),
    ({"trainer": "mine"}, "mine"),
    ({"layers": ""}, "layers"),
    ({"layers": "many"}, "layers"),
    ({"sp": "maybe"}, "sp"),
])  # fmt: skip
def test_an_invalid_row_is_refused_with_its_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"rows.csv:3: .*{words}"):
        read_rows(_table(tmp_path, {}, change))


def test_cells_of_sizes_and_plans_are_read_by_the_names_of_their_fields(tmp_path: Path) -> None:
    more = {"gated": "yes", "recompute": "selective", "flash": "no", "kv_heads": 8, "batch": 40, "note": "?"}
    plain, row = read_rows(_table(tmp_path, {}, more | {"dp": 2, "tp": 4, "seconds": "", "peak_GiB": "3.5"}))
    assert plain.plan == Plan(dp=8, stage=0, many=4)
    assert (plain.seconds, plain.peak, plain.batch, plain.fits) == (1.5, None, 32, True)
    assert row.plan == Plan(dp=2, tp=4, stage=0, many=4, recompute="selective", flash=False)
    assert (row.sizes.gated, row.sizes.kv_heads) == (True, 8)
    assert (row.seconds, row.peak, row.batch) == (None, 3.5 * 2**30, 40)


def test_a_row_out_of_memory_must_not_fit(tmp_path: Path) -> None:
    (row,) = read_rows(_table(tmp_path, {"peak_GiB": "OOM"}))
    assert not row.fits
    assert row.peak is row.seconds is None
    assert errors([row])[0].failed == (0, 0, 1)  # a small model, which fits
    assert errors([replace(row, plan=replace(row.plan, micro=4096))])[0].failed == (1, 0, 0)


def test_nothing_that_was_out_of_memory_is_said_to_fit() -> None:
    """A verdict's bounds are from the fitted rows alone, and hold for BLOOM's, which are of another site."""
    rows = [row for row in read_rows(PLANS / "fitted.csv") if row.peak]
    logs = [log(row.peak / (row.forecast().reserved if row.smi else row.forecast().peak)) for row in rows]
    student = {6: 3.707}[len(logs) - 1]  # of 99 %, both sides
    width = student * stdev(logs) * sqrt(1 + 1 / len(logs))
    assert exp(mean(logs) + width) == pytest.approx(PEAK_ABOVE, abs=0.001)
    assert exp(min(logs)) == pytest.approx(PEAK_BELOW, abs=0.001)
    for name in ("fitted", "kept_back", "bloom", "vtrain_multi"):
        for found in errors(read_rows(PLANS / f"{name}.csv")):
            assert found.failed[2] == found.ran[0] == 0, found.set
    assert sum(found.failed[0] for found in errors(read_rows(PLANS / "bloom.csv"))) == 3


def test_rows_with_the_same_settings_that_contradict_each_other_are_left_out_of_regret() -> None:
    row = read_rows(PLANS / "kept_back.csv")[0]
    assert row.seconds
    again, small = replace(row, seconds=row.seconds * 1.04), replace(row, batch=row.batch // 2)
    assert errors([row, again, replace(small, seconds=row.seconds / 2)])[0].contradictory == ()
    assert len(errors([row, replace(row, seconds=row.seconds * 1.06)])[0].contradictory) == 2
    assert len(errors([row, small])[0].contradictory) == 2  # half the batch in the same time


def test_a_pipeline_waits_for_its_bubble() -> None:
    long, short = (forecast(LLAMA, Plan(dp=1, pp=4, stage=0, many=many), H100).parts for many in (4, 64))
    assert long["bubble"] == short["bubble"]
    assert short["compute"] == 16 * long["compute"]


def test_plans_share_all_gpus_and_the_whole_batch() -> None:
    found = plans(LLAMA, 64, H100, 512)
    for one in (*found.fitting, *found.others):
        assert one.plan.gpus == 64
        assert one.plan.dp * one.plan.micro * one.plan.many == 512
    assert [one.seconds for one in found.fitting] == sorted(one.seconds for one in found.fitting)
    assert all(one.fits and not one.no_fit_reason for one in found.fitting)
    assert all(one.no_fit_reason for one in found.others)


def test_no_plan_on_the_front_is_beaten() -> None:
    found = plans(LLAMA, 64, H100, 512)
    assert found.best in found.front
    for one in found.front:
        assert not any(o.peak < one.peak and o.seconds < one.seconds for o in found.fitting)


def test_what_fits_nowhere_is_said() -> None:
    found = plans(MODELS["70B"], 1, H100, 8)
    assert not found.fitting
    assert "none of" in str(found)
    with pytest.raises(ValueError, match="none of"):
        _ = found.best


def test_errors_on_the_rows_kept_back_are_those_that_the_page_states() -> None:
    page = (ROOT / "docs" / "plan.md").read_text("utf-8")
    sets = {
        "fitted": r"\*fitted\*",
        "kept_back": r"\*\*kept back\*\*",
        "bloom": "seen",
        "vtrain_multi": r"\*\*new\*\*",
    }
    for name, mark in sets.items():
        for found in errors(read_rows(PLANS / f"{name}.csv")):
            assert found.time is not None
            mean, worst = (f"{share:.1%}".replace("%", " %") for share in found.time)
            regret = (
                f"{found.regret[0]:.1%} \\({found.regret[1]}\\) ".replace("%", " %") if found.regret else ""
            )
            assert re.search(rf"{mark} \| {found.rows} \| {mean} \| {worst} \| {regret}\|", page), found.set


def test_the_plan_chosen_costs_little() -> None:
    for name in ("kept_back", "bloom", "vtrain_multi"):
        for found in errors(read_rows(PLANS / f"{name}.csv")):
            assert found.regret is None or found.regret[0] < 0.05


@pytest.mark.parametrize(
    ("text", "words"),
    [("layers = 3", "missing: ffn"), ("colour = 1", "unknown: colour"), ("layers = [", "sizes.toml"),
     ("layers = 2\nhidden = 4096\nheads = 31\nffn = 1\nvocab = 1\nseq = 1", "sizes.toml: heads=31 does not divide")],
)  # fmt: skip
def test_sizes_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "sizes.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=words):
        read_sizes(path)


def test_a_batch_that_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="no plan"):
        plans(LLAMA, 7, H100, 3)


def test_the_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text("layers = 4\nhidden = 512\nheads = 8\nffn = 2048\nvocab = 1000\nseq = 512\n", "utf-8")
    assert main(["plan", "--model", str(path), "--gpus", "8", "--batch", "64", "--top", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("small, ")
    assert said[4].startswith("  … and ")
    assert str(labkit.plan(path, batch=64)).splitlines()[0] == said[0]
    assert main(["plan", "--check", str(ROOT / "tools" / "plans" / "kept_back.csv")]) == 0
    assert "vtrain_single" in capsys.readouterr().out


def test_columns_of_the_table_stand_below_one_another_in_chinese_too() -> None:
    labkit.set_language("zh")
    head, *rows = plans(MODELS["70B"], 64, H100, 512).table().splitlines()[:6]
    assert {tuple(row.split()[5:7]) for row in rows} == {
        ("True", "False"),
        ("False", "True"),
        ("True", "gathered"),
    }
    assert len({row.index(".") for row in rows}) == 1
    assert head.index("GiB") + 1 == rows[0].index(".")
    assert head.index("MFU") + 3 == rows[0].index("%") + 1
    assert head.partition("MFU")[0].isascii()  # in a browser a Chinese character is not two columns wide


def test_hardware_is_found_however_it_is_written() -> None:
    assert accelerator("H100") is accelerator("h100") is H100
    assert accelerator("A100_40") is ACCELERATORS["a100-40"]
    assert accelerator("RTX 4090") is accelerator("rtx-4090") is ACCELERATORS["4090"]


def test_the_cards_sold_in_china_have_what_their_data_sheets_say() -> None:
    """The A800 and the H800 have slower links than the A100 and the H100; the H20 computes less and has more memory."""
    gpus = {name: accelerator(name) for name in ("a100", "h100", "a800", "h800", "h20", "l20", "4090")}
    for limited, full in (("a800", "a100"), ("h800", "h100")):
        one, other = gpus[limited], gpus[full]
        assert (one.flops, one.memory, one.bandwidth) == (other.flops, other.memory, other.bandwidth)
        assert one.links.reduce_bandwidth < 0.7 * other.links.reduce_bandwidth
    assert gpus["h20"].flops == 148e12
    assert gpus["h20"].memory == 96 * 2**30
    assert (gpus["l20"].flops, gpus["4090"].flops) == (119.5e12, 165.2e12)
    for gpu in gpus.values():
        assert plans(MODELS["8B"], 64, gpu, 512).best.seconds > 0


def test_the_explorer_shows_no_plan_that_a_search_would_not_try() -> None:
    for tp, pp, stage in ((0, 0, 3), (0, 1, 1), (3, 0, 0)):
        assert labkit.PlanExplorer(doublings=3, tp=tp, pp=pp, stage=3).plan.stage == stage


def test_plans_and_explorer_draw_themselves_in_both_languages() -> None:
    explorer = labkit.PlanExplorer(doublings=6, tp=1, pp=1, stage=1)
    assert (explorer.plan.dp, explorer.plan.tp, explorer.plan.pp) == (16, 2, 2)
    explorer.doublings = 1
    assert explorer.plan.gpus == 2
    assert "fit" in labkit.PlanExplorer(doublings=0).sentence()
    for doublings, notes in ((0, ["160 GiB, too much"]), (6, [])):
        texts = labkit.PlanExplorer(doublings=doublings).make_picture().texts
        assert [text.text for text in texts if text.bold and "GiB" in text.text] == notes
    times = {  # a piece of a hundred seconds, whatever the plan
        found.recompute: sum(
            box.width for box in found.make_picture().boxes if box.label.endswith(" compute") and box.y > 150
        )
        for found in (labkit.PlanExplorer(doublings=3, recompute=again) for again in ("no", "yes"))
    }
    assert 1.2 < times["yes"] / times["no"] < 1.4
    for language, word in (("en", "activations"), ("zh", "激活值")):
        before = labkit.get_language()
        labkit.set_language(language)
        try:
            assert word in (plans(LLAMA, 8, H100, 64)._repr_svg_() or "")
        finally:
            labkit.set_language(before)
