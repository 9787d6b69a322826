"""Exercises judge, hint and reveal, in both languages; no answer of any kind breaks a lesson."""

import re

import numpy as np
import pytest
import torch

import labkit
from labkit.course import check, glossary, reveal
from labkit.course.answers import every, exercise


def chunks(rows, gpus):
    return [len(piece) for piece in torch.arange(rows).chunk(gpus)]


RIGHT = {
    "00.bytes": [20000, 20480, torch.ones(1000, 5).nbytes],
    "00.first_split": [
        [3, 3, 3],
        (3, 3, 3),
        torch.tensor([3, 3, 3]),
        np.array([3, 3, 3]),
        labkit.split(9, 4).sizes,
    ],
    "01.batches": [(30, 30, 30, 10), [30.0, 30, 30, 10]],
    "01.dropped": [10, 10.0, torch.tensor(10), np.int64(10)],
    "01.last_batch": [lambda rows, size: rows - (rows - 1) // size * size],
    "02.tensor_copy": ["cpu", " CPU ", torch.device("cpu")],
    "02.inside": [15],
    "02.lines": [8],
    "02.wrapping": ["cpu"],
    "03.which": [4, "cuda:4", torch.device("cuda:4")],
    "03.idle": [3],
    "03.rule": [
        chunks,
        lambda rows, gpus: torch.tensor(chunks(rows, gpus)),
        lambda r, g: labkit.split(r, g).sizes,
    ],
    "08.rows": [[3, 7, 1], (3, 7, 1), torch.tensor([3, 7, 1])],
    "08.average": [3, 3.0, torch.tensor(3.0), torch.tensor([3.0]), np.float32(3)],
    "08.zero": [9, 9.0, 9_000_000_000, 9e9],
}
# What learners believe, and the words that name it.
WRONG = {
    "00.bytes": [
        (5000, "how many numbers"), (40000, "float64"), (10000, "float16"), (80000, "no copy"), (1, "rows ×"),
        ("20 kB", "asks for a whole number of bytes"),
    ],
    "00.first_split": [
        ([3, 2, 2, 2], "evenly"), ([3, 3, 3, 0], "no piece at all"), ([9, 9, 9, 9], "the model that is copied"),
        ([4, 4], "8 rows in all"), ([5, 4], "ceil(9 / 4)"), (9, "ceil(9 / 4)"), ("333", "asks for a list"),
        ([3.2, 3, 2.8], "asks for a list"),
    ],
    "01.batches": [
        ([25] * 4, "does not even"), ([30] * 3, "drop_last"), ([30] * 4, "120 rows"), (4, "4 batches"),
        ([50, 50], "30 at a time"),
    ],
    "01.dropped": [
        (0, "throws"), (30, "only the short"), (90, "does see"), (7, "how many rows"), (10.5, "asks for"),
        (True, "asks for"), ("ten", "asks for"),
    ],
    "01.last_batch": [
        (10, "the function itself"), (lambda rows, size: ..., "return"), (lambda rows, size: None, "return"),
        (lambda rows, size: rows % size, "never gives an empty batch"), (lambda rows, size: size, "a full batch"),
        (lambda rows, size: 1, "the last batch has"), (lambda rows: 1, "raised TypeError"),
        (lambda rows, size: "ten", "asks for a function"),
    ],
    "02.tensor_copy": [("cuda:0", "copy"), ("cuda", "copy"), ("gpu", "asks for a device"), (0, "asks for a device")],
    "02.inside": [(30, "outside"), (60, "not given to every GPU"), (2, "number of GPUs"), (3, "2 equal pieces")],
    "02.lines": [(4, "right for one GPU"), (2, "how many batches"), (12, "printed outside"), (1, "batches ×")],
    "02.wrapping": [("cuda:0", "nobody has called"), ("cuda:1", "puts nothing on any GPU")],
    "03.which": [
        (5, "from zero"), (1, "like cards"), (8, "there is no cuda:8"), (2, "how many rows"), ("x", "asks for"),
    ],
    "03.idle": [
        (0, "evenly"), (5, "how many do not"), (7, "rounded up"), (6, "how many pieces"), (1, "ceil(10 / 8)"),
        (3.9, "asks for"),
    ],
    "03.rule": [
        (lambda rows, gpus: [rows // gpus + (k < rows % gpus) for k in range(gpus)], "even share"),
        (lambda rows, gpus: [rows // gpus] * (gpus - 1) + [rows - rows // gpus * (gpus - 1)], "rounds 30 / 8 down"),
        (lambda rows, gpus: chunks(rows, gpus) + [0] * (gpus - len(chunks(rows, gpus))), "no piece at all"),
        (lambda rows, gpus: [1], "rows in all"), (lambda rows, gpus: [], "an empty list"),
        (lambda rows, gpus: [rows - 1, 1], "but the pieces are"), (lambda rows, gpus: ..., "return"),
        (lambda rows, gpus: 1 / 0, "raised ZeroDivisionError"), ([4, 4], "the function itself"),
    ],
    "08.rows": [
        ([3, 7], "must read as many"), ([9], "neighbouring"), ([7, 8, 9], "neighbouring"), ([3, 7, 0], "whose turn"),
        ([3, 7, 3], "own first row"), ([2, 6, 0], "from zero"), ([4, 8], "from zero"), (3, "in turn"),
        ("three", "asks for a list"),
    ],
    "08.average": [
        (6, "is the sum"), (2.0, "one rank alone"), (4, "one rank alone"), (1.5, "divide by"),
        ("3", "asks for a number"), ([3.0, 3.0], "asks for a number"),
    ],
    "08.zero": [
        (16, "nothing sharded"), (2, "stage 3"), (5.5, "stage 2"), (8, "does not mean gone"), (12, "one of 8"),
        (None.__class__, "asks for a number"),
    ],
}  # fmt: skip


def test_every_exercise_is_tried_here():
    assert set(RIGHT) == set(WRONG) == set(every())


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_right_answers_are_right(name):
    for answer in RIGHT[name]:
        verdict = check(name, answer)
        assert (verdict.right, repr(verdict)) == (True, "✓ Right."), answer


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name in sorted(WRONG) for n in range(len(WRONG[name]))]
)
def test_a_wrong_answer_gets_a_hint_that_names_the_misconception(name, number):
    answer, words = WRONG[name][number]
    verdict = check(name, answer)
    assert verdict.right is False
    assert words in verdict.text
    labkit.set_language("zh")
    chinese = check(name, answer).text
    assert re.search("[一-鿿]", chinese)
    assert glossary.problems(verdict.text, chinese) == []


@pytest.mark.parametrize("name", sorted(RIGHT))
@pytest.mark.parametrize("odd", [object(), {}, [None], [[3]], float("nan"), "", b"3", -1, 10**30, [True]])
def test_no_answer_of_any_kind_breaks_the_lesson(name, odd):
    verdict = check(name, odd)
    assert verdict.right is False
    assert verdict.text


def test_no_answer_yet_is_neutral_and_the_same_every_time():
    for nothing in (None, ...):
        verdict = check("03.idle", nothing)
        assert verdict.right is None
        assert repr(verdict) == "… Not answered yet: replace `None` with your answer and run the cell again."
        assert verdict._repr_html_() == check("03.idle", nothing)._repr_html_()
    labkit.set_language("zh")
    assert "还没有作答" in repr(check("03.idle", None))


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_the_solution_is_folded_until_asked_for(name):
    hidden = reveal(name)
    assert hidden.text not in repr(hidden)
    assert f'reveal("{name}").text' in repr(hidden)
    html = check(name, None)._repr_html_()
    assert re.search(r"<details><summary>Show the answer</summary>.+</details>", html, re.DOTALL)
    assert "<details open" not in html
    labkit.set_language("zh")
    assert "<summary>查看答案</summary>" in reveal(name)._repr_html_()
    assert glossary.problems(hidden.text, reveal(name).text) == []


@pytest.mark.parametrize("name", ["01.last_batch", "03.rule"])
def test_the_solution_that_is_code_is_right(name):
    code = re.search(r"```\n(.*?)\n```", reveal(name).text, re.DOTALL)[1]
    made = {}
    exec(code, made)
    assert check(name, made[code.split("(")[0].removeprefix("def ")]).right


def test_what_a_learner_writes_is_shown_as_text_never_as_html():
    assert "<b>" not in check("03.idle", "<b>3</b>")._repr_html_()


def test_an_unknown_exercise_is_named():
    with pytest.raises(ValueError, match=r"exercise must be one of 00\.bytes, .*; got '99\.none'"):
        check("99.none", 1)


def test_two_exercises_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two exercises '03.idle'"):
        exercise("03.idle", wanted=str, solution=str)(lambda answer: None)
