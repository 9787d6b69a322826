"""Texts in two languages: filled in with facts, read from files with their code."""

import pytest

from labkit.base.texts import Text, columns, parse


@pytest.mark.parametrize(("text", "facts", "filled"), [
    ("{n:row} of {m:row}", {"n": 1, "m": 2}, "1 row of 2 rows"), ("{n:batch/batches}", {"n": 1}, "1 batch"),
    ("{n:batch/batches}", {"n": 4}, "4 batches"),
    ("{x:.2g} {y:>3} {{}}", {"x": 3.14159, "y": 7}, "3.1   7 {}"),
    ("{error.args[0]}", {"error": ValueError("why")}, "why"),
])  # fmt: skip
def test_facts_are_filled_in(text, facts, filled):
    assert Text(text, "无").fill(facts) == Text(filled, "无")


def test_a_text_within_a_text_is_in_its_language():
    assert Text("{case}: no", "{case}：不").fill({"case": Text("here", "这里")}) == Text(
        "here: no", "这里：不"
    )


def test_code_stands_beside_the_texts_and_an_entry_may_have_none():
    first, second = parse("%% a b\nen: one\nzh: 一\n| def f():\n|     pass\n|\n| x\n%% + [1, 2]\n")
    assert first.words == ("a", "b")
    assert first.texts == {"": Text("one", "一")}
    assert first.code == "def f():\n    pass\n\nx\n"
    assert (second.words, second.texts, second.code) == (("+", "[1,", "2]"), {}, "")


def test_a_line_out_of_place_is_named():
    with pytest.raises(ValueError, match="line 2: 'one' belongs to no text"):
        parse("%% a\none\n")


@pytest.mark.parametrize(
    ("text", "wide"), [("", 0), ("rank 0, é", 9), ("卡", 2), ("rank 0，卡", 10), ("ｒ（", 4)]
)
def test_chinese_letters_and_signs_take_two_columns(text, wide):
    assert columns(text) == wide
