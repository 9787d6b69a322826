"""Plans from sizes: known bytes, what is left out, and the model's errors on the rows that it was frozen before."""

import re
from pathlib import Path

import pytest

import labkit
from labkit.base.texts import columns
from labkit.cli import main
from labkit.cost.hardware import ACCELERATORS, accelerator
from labkit.cost.plan import Plan, forecast, memory
from labkit.cost.rows import errors, read_rows
from labkit.cost.search import plans
from labkit.cost.sizes import MODELS, Sizes, read_sizes

ROOT = Path(__file__).parents[2]
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
    for stage, kinds in (
        (1, ["optimizer"]),
        (2, ["optimizer", "gradients"]),
        (3, ["optimizer", "gradients", "weights"]),
    ):
        for kind in ("optimizer", "gradients", "weights"):
            assert by_stage[stage][kind] == whole[kind] / (8 if kind in kinds else 1)


def test_buckets_hold_what_a_gpu_has_of_a_layer() -> None:
    alone, shared = (memory(LLAMA, Plan(dp=4, tp=tp, stage=3))["buckets"] for tp in (1, 2))
    assert alone == 2 * shared == 8 * LLAMA.layer_parameters


def test_activations_are_korthikantis() -> None:
    """34 bytes a number of a layer without the scores: of GPT-2's layer, with dropout's masks, within a tenth."""
    tokens = GPT2_22B.seq
    assert GPT2_22B.kept_bytes(1, 1) == pytest.approx(34 * tokens * GPT2_22B.hidden, rel=0.1)
    assert GPT2_22B.kept_bytes(1, 8) == pytest.approx(GPT2_22B.kept_bytes(1, 1) / 8)
    assert GPT2_22B.kept_bytes(1, 8, recompute="full") == 2 * tokens * GPT2_22B.hidden / 8


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
    assert all(one.fits and not one.why_not for one in found.fitting)
    assert all(one.why_not for one in found.others)


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
    for name, mark in (("fitted", r"\*fitted\*"), ("kept_back", r"\*\*kept back\*\*")):
        for found in errors(read_rows(ROOT / "tools" / "plans" / f"{name}.csv")):
            assert found.time is not None
            figures = rf"{mark} \| {found.rows} \| {found.time[0]:.1%} \| {found.time[1]:.1%}".replace(
                "%", " %"
            )
            assert re.search(figures, page), (found.set, figures)


def test_the_plan_chosen_costs_little() -> None:
    for found in errors(read_rows(ROOT / "tools" / "plans" / "kept_back.csv")):
        assert found.regret is None or found.regret[0] < 0.05


@pytest.mark.parametrize(
    ("text", "words"),
    [("layers = 3", "missing: ffn"), ("colour = 1", "unknown: colour"), ("layers = [", "sizes.toml")],
)
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
    rows = plans(MODELS["70B"], 64, H100, 512).table().splitlines()[1:5]
    assert len({"是" in row for row in rows}) == 2
    assert len({columns(row[: row.index(".")]) for row in rows}) == 1


def test_hardware_is_found_however_it_is_written() -> None:
    assert accelerator("H100") is accelerator("h100") is H100
    assert accelerator("A100_40") is ACCELERATORS["a100-40"]


def test_the_explorer_shows_no_plan_that_a_search_would_not_try() -> None:
    shown = [
        labkit.PlanExplorer(doublings=3, tp=tp, pp=pp, stage=3).plan.stage
        for tp, pp in ((0, 0), (0, 1), (3, 0))
    ]
    assert shown == [3, 1, 0]


def test_plans_and_explorer_draw_themselves_in_both_languages() -> None:
    explorer = labkit.PlanExplorer(doublings=6, tp=1, pp=1, stage=1)
    assert (explorer.plan.dp, explorer.plan.tp, explorer.plan.pp) == (16, 2, 2)
    explorer.doublings = 1
    assert explorer.plan.gpus == 2
    assert "fit" in labkit.PlanExplorer(doublings=0).sentence()
    told = [labkit.PlanExplorer(doublings=doublings).drawn().texts for doublings in (0, 6)]
    assert [[text.text for text in texts if text.bold and "GiB" in text.text] for texts in told] == [
        ["163 GiB, too much"],
        [],
    ]
    for language, word in (("en", "activations"), ("zh", "激活值")):
        before = labkit.get_language()
        labkit.set_language(language)
        try:
            assert word in (plans(LLAMA, 8, H100, 64)._repr_svg_() or "")
        finally:
            labkit.set_language(before)
