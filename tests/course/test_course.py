"""Exercises judge, hint and reveal; progress survives; lessons check their parameters."""

import json

import pytest
import torch

import labkit
from labkit.course import answers, check, progress, reveal
from labkit.course import exercises as _exercises  # noqa: F401
from labkit.course.lesson import begin

RIGHT = {
    "00.first_split": [3, 3, 3],
    "01.batches": (30, 30, 30, 10),
    "01.dropped": 10,
    "02.tensor_copy": "cpu",
    "02.inside": 15,
    "03.idle": 3,
    "03.rule": lambda rows, gpus: [len(p) for p in torch.arange(rows).chunk(gpus)],
}
WRONG = {
    "00.first_split": [([3, 2, 2, 2], "evenly"), ([3, 3, 3, 0], "three numbers"), ([4, 4], "8 rows in all")],
    "01.batches": [([25] * 4, "does not even"), ([30] * 3, "drop_last"), ([50, 50], "30 at a time")],
    "01.dropped": [(0, "throws"), (30, "only the short")],
    "02.tensor_copy": [("cuda:0", "copy")],
    "02.inside": [(30, "outside"), (2, "number of GPUs")],
    "03.idle": [(0, "ceil"), (5, "how many do not")],
    "03.rule": [
        (lambda rows, gpus: [rows // gpus + (k < rows % gpus) for k in range(gpus)], "even share"),
        (lambda rows, gpus: [1], "rows in all"),
        ("ceil", "a function"),
    ],
}


@pytest.mark.parametrize("exercise", sorted(answers.EXERCISES))
@pytest.mark.parametrize("language", ["en", "zh"])
def test_right_answers_are_right_and_wrong_ones_get_a_hint(exercise, language):
    labkit.set_language(language)
    assert check(exercise, RIGHT[exercise]).right
    assert check(exercise, None).right is None
    for answer, hint in WRONG[exercise]:
        verdict = check(exercise, answer)
        assert verdict.right is False
        assert language == "zh" or hint in verdict.text
    assert check(exercise, object()).right is False
    assert reveal(exercise).solution in reveal(exercise)._repr_html_().replace("&quot;", '"')


def test_every_exercise_has_an_answer_here():
    assert set(RIGHT) == set(WRONG) == set(answers.EXERCISES)


def test_progress_is_kept_and_a_broken_file_is_not_lost(tmp_path, monkeypatch):
    file = tmp_path / "deep" / "progress.json"
    monkeypatch.setenv("LABKIT_PROGRESS", str(file))
    check("03.idle", 0)
    assert not file.exists()
    check("03.idle", 3)
    assert json.loads(file.read_text("utf-8")) == {"done": ["03.idle"]}
    file.write_text("not json", "utf-8")
    check("02.inside", 15)
    assert progress.done() == {"02.inside"}
    assert file.with_suffix(".unreadable").read_text("utf-8") == "not json"
    assert str(file) in repr(progress.Progress())


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"num_gpus": "eight"}, TypeError, "num_gpus must be a whole number from 0 to 64, got 'eight'"),
        ({"num_gpus": -1}, ValueError, "num_gpus must be from 0 to 64, got -1"),
        ({"batch_size": 0}, ValueError, "batch_size must be from 1"),
        ({"data_size": 2.5}, TypeError, "data_size must be a whole number"),
        ({"language": "fr"}, ValueError, "language must be one of 'en', 'zh', got 'fr'"),
    ],
)
def test_parameters_are_checked_in_one_line(change, error, text):
    good = {"num_gpus": 2, "batch_size": 30, "data_size": 100, "language": "en"}
    with pytest.raises(error, match=text):
        begin("03_split", **(good | change))
    assert torch.cuda.device_count() == 0


def test_a_lesson_begins_with_its_gpus():
    assert begin("03_split", num_gpus=5, batch_size=3, data_size=10, language="zh").machine.gpus[4].index == 4
    assert labkit.get_language() == "zh"
