"""Predictions: asked in both languages with their own numbers, text where nobody clicks, judged like check()."""

import ast
import random
import re
from itertools import product

import pytest
import torch

import labkit
from labkit.base.language import get_language
from labkit_course import check, glossary, predict
from labkit_course.exercise import find, ids
from labkit_course.kinds import parse_typed

EXERCISES = {name: find(name) for name in ids()}
PREDICTIONS = [name for name, exercise in EXERCISES.items() if exercise.asks]
CHOSEN = [name for name in PREDICTIONS if EXERCISES[name].choices()]


def some_facts(exercise):
    """The usual numbers, and the least and the greatest of each."""
    usual = {name: fact[0] for name, fact in exercise.code.facts.items()}
    return [usual, *(usual | {name: edge} for name, fact in exercise.code.facts.items() for edge in fact[1:])]


@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_question_is_asked_and_explained_in_both_languages_whatever_its_numbers(name):
    exercise = EXERCISES[name]
    for facts in some_facts(exercise):
        texts = {}
        for language in ("en", "zh"):
            labkit.set_language(language)
            asked = predict(name, **facts)
            texts[language] = [asked.question, *asked.choices, exercise.solution(**facts)]
            assert all(texts[language])
            assert repr(asked).splitlines()[0] == asked.question
        for english, chinese in zip(texts["en"], texts["zh"], strict=True):
            assert re.search("[一-鿿]", chinese) or english == chinese, "a number or code needs no words"
            assert glossary.problems(english, chinese) == []


@pytest.mark.parametrize("name", CHOSEN)
def test_one_choice_is_right_and_each_other_says_what_is_wrong_with_it(name):
    exercise = EXERCISES[name]
    hints = [answer.hint for answer in exercise.answers]
    assert hints.count(None) == 1
    assert 2 <= len(hints) <= 5
    assert len(set(exercise.choices())) == len(hints)
    for number, hint in enumerate(hints, 1):
        verdict = predict(name).answer(number)
        assert verdict.right is (hint is None)
        assert hint is None or verdict.text == str(hint)
        assert (exercise.solution() in verdict.text) is (hint is None), "a hint does not give it away"


@pytest.mark.parametrize(("rows", "gpus"), [*product((1, 7, 18, 30, 64), (1, 2, 3, 8))])
def test_the_split_is_judged_with_the_numbers_that_were_asked(rows, gpus):
    pieces = torch.arange(rows).chunk(gpus)
    busy = len(pieces)
    for guess in range(gpus + 1):
        assert check("03.idle", guess, rows=rows, gpus=gpus).right is (guess == gpus - busy)


def test_every_number_of_rows_has_a_batch_size_that_leaves_a_single_row():
    """With 720 rows none below 200 does."""
    assert check("01.single", 719, rows=720).right
    assert "719" in EXERCISES["01.single"].solution(rows=720)


AGAIN = [name for name in PREDICTIONS if EXERCISES[name].code.fresh]


@pytest.mark.parametrize("name", AGAIN)
def test_a_question_is_asked_again_with_other_numbers_and_judged_with_them(name):
    before = torch.random.get_rng_state(), random.getstate()
    asked, questions = predict(name), set()
    for seed in range(20):
        facts = asked.facts
        asked.ask_again(random.Random(seed))
        assert asked.facts != facts
        questions.add(asked.question)
        found = re.search(r"`(.+?)`|: (\d+)", EXERCISES[name].solution(**asked.facts))
        right = ast.literal_eval(found[1] or found[2])
        assert asked.answer(right).right, asked.facts
    assert len(questions) > 10
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate(), "the learner's own random numbers stay theirs"


def test_where_nobody_clicks_the_question_is_text_and_nothing_waits():
    chosen, written = predict("03.order"), predict("03.idle", rows=18, gpus=8)
    lines = chosen._repr_mimebundle_()["text/plain"].splitlines()
    assert [line[:4] for line in lines[1:4]] == ["  1 ", "  2 ", "  3 "]
    assert "check('03.order', …)" in lines[4]
    plain = written._repr_mimebundle_()["text/plain"]
    assert plain.startswith("18 rows on 8 GPUs")
    assert "check('03.idle', …, rows=18, gpus=8)" in plain
    assert written.verdict is None
    labkit.set_language("zh")
    assert "点选你的答案" in repr(predict("03.order"))


def test_the_words_stay_in_the_language_the_question_was_asked_in():
    asked = predict("03.order")
    labkit.set_language("zh")
    assert asked.answer(2).text.startswith("Right. Gather joins")
    assert get_language() == "zh"


@pytest.mark.parametrize(("text", "value"), [
    ("3", 3), (" 3 ", 3), ("３", 3), ("3.5", 3.5), ("-1", -1), ("3, 2, 2", (3, 2, 2)), ("3，2，2", (3, 2, 2)),
    ("[3, 2]", [3, 2]), ("【3、2】", [3, 2]), ("cuda:1", "cuda:1"), ("cuda：1", "cuda:1"), ("'cpu'", "cpu"),
    ("3/2", 1.5), ("6 / 4", 1.5), ("3/0", "3/0"), ("", ""), ("(" * 500, "(" * 500),
    ("__import__('os')", "__import__('os')"),
])  # fmt: skip
def test_what_is_typed_is_read_as_a_value_and_never_run(text, value):
    assert parse_typed(text) == value


def test_a_number_that_the_question_does_not_take_is_named():
    with pytest.raises(TypeError, match="columns: the numbers of this question are rows, gpus"):
        predict("03.idle", columns=3)
    with pytest.raises(ValueError, match="gpus"):
        predict("03.idle", gpus=0)
    with pytest.raises(ValueError, match="'03.rule' has no question to predict"):
        predict("03.rule")


def clicked(asked):
    """The widgets of a prediction: what answers, and where the verdict stands."""
    asked._repr_mimebundle_()
    _, made, told = asked._widget.children[0].children
    return made.children, told


def test_a_wrong_click_leaves_the_others_and_the_right_one_ends_it():
    asked = predict("03.order")
    buttons, told = clicked(asked)
    buttons[0].click()
    assert [button.disabled for button in buttons] == [True, False, False]
    assert "wrong labels" in told.value
    assert "✗" in told.value
    buttons[1].click()
    assert all(button.disabled for button in buttons)
    assert [button.icon for button in buttons] == ["times", "check", ""], "told apart without colour"
    assert "✓ Right." in told.value
    assert 'role="status"' in told.value


@pytest.mark.parametrize(("exercise", "facts", "answers"), [
    ("00.bytes", {}, ["20,000", "20 000", "20000", "２０，０００", 20000, "20,000 bytes", "20000字节"]),
    ("00.bytes", {"rows": 1_000_000, "columns": 100}, ["400,000,000"]),
    ("00.first_split", {}, ["3 3 3", "3, 3, 3", "(3, 3, 3)", "[3 3 3]", "3、3、3", "3  3 3"]),
    ("01.stacked", {}, ["30x5", "30 x 5", "30×5", "(30, 5)", "30*5", "torch.Size([30, 5])", "30 5", "30X5"]),
    ("01.dropped", {}, ["10 rows", "10rows", "10 行", "10.0 Rows"]),
    ("03.idle", {"rows": 18, "gpus": 8}, ["2 GPUs", "2 块"]),
])  # fmt: skip
def test_answers_are_read_as_people_type_them(exercise, facts, answers):
    for answer in answers:
        assert check(exercise, answer, **facts).right, answer


def test_a_list_whose_numbers_look_like_thousands_stays_a_list():
    assert "hold 1 row in all" in check("00.first_split", "1,000").text
    assert check("00.bytes", "20,00").right is False, "no thousands: two numbers, where one is asked for"
    assert check("02.wrapping", "cpu").right, "text is text where text is asked for"


def test_an_answer_that_may_be_two_mistakes_gets_the_hint_of_the_likelier():
    assert "how many do not" in check("03.idle", 6, rows=18, gpus=8).text, "6 rows are missing, too"


def test_a_unit_that_changes_the_number_is_not_dropped():
    for answer in ("20000 kB", "20000 thousand", "bytes", "20000 rows 2"):
        assert not check("00.bytes", answer).right, answer


def test_a_value_is_judged_once_however_it_is_given():
    asked = predict("03.idle", rows=18, gpus=8)
    (field, button), told = clicked(asked)
    button.click()
    assert told.value == "", "nothing typed is no answer"
    field.value = "0"
    first = asked.verdict
    button.click()
    assert asked.verdict is first, "leaving the field and clicking are one answer"
    field.value = "2"
    assert asked.verdict.right
    field.value = "<b>2</b>"
    assert "<b>" not in told.value


def test_other_numbers_are_offered_once_there_is_an_answer():
    asked = predict("03.idle", rows=18, gpus=8)
    (field, _), told = clicked(asked)
    again = asked._widget.children[-1]
    assert again.layout.display == "none"
    field.value = "2"
    assert again.layout.display is None
    assert told.value
    labkit.set_language("zh")
    again.click()
    (field, _), told = clicked(asked)
    assert asked.facts != {"rows": 18, "gpus": 8}
    assert (field.value, told.value) == ("", "")
    question = asked._widget.children[0].children[0].value
    assert f"{asked.facts['rows']} rows on" in question, "in the language it was asked in"
    assert asked._widget.children[-1] is again, "what has the keyboard's focus stays"
    field.value = "99"
    assert asked.verdict.right is False
    unnumbered = predict("03.order")
    buttons, _ = clicked(unnumbered)
    buttons[1].click()
    assert unnumbered._widget.children[-1].layout.display == "none"
