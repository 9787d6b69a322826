"""What answers a question stands folded below it, and nowhere above: headings, titles and what was printed included."""

import ast
import re
from pathlib import Path

import pytest

import labkit
from labkit_course import glossary
from labkit_course.exercise import find, ids
from tools.author import sync

ROOT = Path(__file__).parents[2] / "notebooks"
FOLD = re.compile(r"<details>.*?</details>", re.DOTALL)
HEAD = {
    "en": r'<details><summary><span class="labkit-([\w-]+)">Answer first, then open: </span>[^<]+</summary>\n\n',
    "zh": r'<details><summary><span class="labkit-([\w-]+)">先作答，再打开：</span>[^<]+</summary>\n\n',
}
LESSONS = [(lesson, language) for lesson in sync.lessons(ROOT) for language in sync.LANGUAGES]


def asked(cell):
    """The exercise that a cell asks as a prediction, with the facts written there; None if it asks none."""
    found = re.search(r'predict\("([^"]+)"', cell.source) if cell.cell_type == "code" else None
    return found and found[1]


def grams(text, language):
    """The runs of words, or of Chinese letters, by which one text repeats another."""
    text = re.sub(r"[`*_“”\"]", "", text.lower())
    if language == "zh":
        words = re.findall(r"[\u4e00-\u9fff]|[a-z0-9:.]+", text)
        return {" ".join(words[at : at + 8]) for at in range(len(words) - 7)}
    words = re.findall(r"[\w:.']*\w", text)
    return {" ".join(words[at : at + 5]) for at in range(len(words) - 4)}


def values(text):
    """The lists and shapes in a text, however they are written: ``[3, 3, 3]``, ``3、3、3``, ``(30, 5)``."""
    return {tuple(re.findall(r"\d+", found)) for found in re.findall(r"\d+(?:\s?[,、×]\s?\d+)+", text)}


def told(name, language):
    """What gives the answer away: runs of words of the solution and of the right choice; lists, and great numbers."""
    exercise = find(name)
    labkit.set_language(language)
    facts = {key: usual for key, (usual, *_) in exercise.code.facts.items()}
    question = " ".join([exercise.question(**facts), *exercise.choices()])
    right = [
        str(answer.text.fill({})) for answer in exercise.answers if not answer.hint and exercise.choices()
    ]
    solution = exercise.solution(**facts)
    words = grams(solution, language) - grams(question, language)
    words |= {gram for text in right for gram in grams(text, language)}
    first = re.match(r"`([^`]*)`", solution)
    value = first[1] if first and not exercise.choices() else ""
    numbers = {value} if re.fullmatch(r"\d{2,}", value) and int(value) > 20 else set()
    return words, values(value), numbers - set(re.findall(r"\d+", question))


def read(cell, language):
    """What a cell shows to a learner who has opened no fold and sees what has run; questions ask, and tell nothing."""
    if cell.cell_type == "markdown":
        return FOLD.sub("", cell.source)
    if asked(cell) or cell.source.startswith("Cases("):  # folded below each title; titles are the choices
        return ""
    return "\n".join(str(o.get("text", o.get("data", {}).get("text/plain", ""))) for o in cell.outputs)


def given_away(lesson, language):
    """Each prediction whose answer is read before it is asked, or unfolded below it before the next question."""
    cells = sync.read(ROOT, language, lesson).cells
    questions = [at for at, cell in enumerate(cells) if asked(cell)]
    for at in questions:
        following = next((k for k in questions if k > at), len(cells))
        above = "\n".join(read(cell, language) for cell in cells[:at])
        below = "\n".join(
            read(cell, language) for cell in cells[at + 1 : following]
            if cell.cell_type == "markdown" and cell.id != "summary"
        )  # fmt: skip
        words, lists, numbers = told(asked(cells[at]), language)
        for where, text in (("above", above), ("below", below)):
            for found in words & grams(text, language) | lists & values(text):
                yield f"{asked(cells[at])}: {where}: {found}"
            for number in numbers & set(re.findall(r"(?<![\d.])\d+(?![\d.])", text)):
                yield f"{asked(cells[at])}: {where}: {number}"


@pytest.mark.parametrize(("lesson", "language"), LESSONS)
def test_no_answer_stands_open_before_its_question_or_below_it(lesson, language):
    assert list(given_away(lesson, language)) == []


@pytest.mark.parametrize(("lesson", "language"), LESSONS)
def test_every_lesson_folds_its_explanations_and_says_to_answer_first(lesson, language):
    cells = sync.read(ROOT, language, lesson).cells
    known, folded = set(), set()
    for cell in cells:
        if asked(cell):
            known.add(asked(cell).replace(".", "-"))
        if cell.cell_type == "markdown":
            heads = re.findall(HEAD[language], cell.source)
            assert len(heads) == cell.source.count("<details") == cell.source.count("\n\n</details>"), cell.id
            assert set(heads) <= known, f"{cell.id}: the question comes first"
            folded |= set(heads)
    assert len(folded) >= len(known) // 2, "most questions have an explanation"


def hidden_verdicts(source):
    """The exercises of a cell whose verdict nobody sees, for it is not what the cell ends with."""
    tree = ast.parse(re.sub(r"(?m)^(\s*)%.*", r"\1pass", source))
    last = tree.body[-1].value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node is not last]
    return [
        call.args[0].value for call in calls if getattr(call.func, "id", "") in ("check", "predict", "repair")
    ]


def test_a_verdict_is_what_its_cell_ends_with():
    assert hidden_verdicts('check("18.mfu", mfu)\nif mfu(1, 1, 1):\n    print(1)') == ["18.mfu"]
    for lesson in sync.lessons(ROOT):
        for cell in sync.read(ROOT, "en", lesson).cells:
            if cell.cell_type == "code":
                assert hidden_verdicts(cell.source) == [], f"{lesson}, {cell.id}"


def test_both_languages_fold_the_same():
    for lesson in sync.lessons(ROOT):
        for one, other in zip(
            *(sync.read(ROOT, tongue, lesson).cells for tongue in sync.LANGUAGES), strict=True
        ):
            heads = [
                re.findall(HEAD[tongue], cell.source) for tongue, cell in zip(HEAD, (one, other), strict=True)
            ]
            assert heads[0] == heads[1], f"{lesson}, {one.id}"


def test_the_rule_of_the_split_is_asked_at_most_three_times_before_its_lesson():
    early = [
        name
        for name in ids()
        if name < "03" and re.search(r"ceil\(|rounded up|gets? rows", str(find(name).texts["solution"].en))
    ]
    assert len(early) <= 3, early


def test_every_exercise_without_a_question_says_why_in_whole_sentences():
    for name in ids():
        if not find(name).asks:
            for language in sync.LANGUAGES:
                labkit.set_language(language)
                why = find(name).explanation()
                end = r".+。）?" if language == "zh" else r".+\.\)?"
                assert re.fullmatch(end, why), name
            text = find(name).texts["why"]
            assert glossary.problems(text.en, text.zh) == [], name
