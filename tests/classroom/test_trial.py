"""A new assignment is tried before it is given out, and answers before they are handed in, by the judges that grade."""

import json
import secrets
from dataclasses import replace
from pathlib import Path

import engine
import pytest
import sandboxed

from labkit_classroom.assignment import load
from labkit_classroom.grade.submission import draws
from labkit_classroom.grade.trial import find_odd_numbers, try_answers
from labkit_classroom.handout.folder import release
from labkit_classroom.handout.roster import Student
from labkit_classroom.judging import RubricPart
from labkit_classroom.messages import Problem, Words
from labkit_cli import main

WAY = sandboxed.way()
FLOOR = "def split(rows, gpus):\n    return [rows // gpus] * gpus\n"
WRONG = {
    "split.floor.py": FLOOR,
    "split.right.py": "def split(rows, gpus):\n    size = -(-rows // gpus)\n"
    "    return [size] * (rows // size) + [rows % size] * (rows % size > 0)\n",
    # Wrong where the batch is large, which some students' cases are and others' are not.
    "scatter.large.py": "def scatter(batch, count):\n    return list(batch.chunk(count)) if len(batch) % 2 else []\n",
}


@pytest.fixture
def mine(small, tmp_path):
    """The small assignment in a folder of its own, with wrong answers."""
    import shutil

    folder = tmp_path / "mine"
    shutil.copytree(small.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "wrong").mkdir()
    for name, source in WRONG.items():
        (folder / "wrong" / name).write_text(source, "utf-8")
    return folder


def test_an_assignment_is_tried_with_its_solution_nothing_and_wrong_answers(mine, capsys, monkeypatch):
    # By chance all 4 students may draw rows that FLOOR cuts rightly, or an odd number each.
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    found = {(one.question, one.title): one for one in try_answers(load(mine), WAY, students=4)}
    assert found["split", "solution"].points == [2] * 4
    assert found["split", "empty"].points == [0] * 4
    assert found["split", "split.floor.py"].lost == {"rule": 4}
    odd = {title: one.odd.en for (_, title), one in found.items() if one.odd}
    assert set(odd) == {"split.right.py", "scatter.large.py"}
    assert "loses nothing" in odd["split.right.py"]
    assert "do not always show the mistake" in odd["scatter.large.py"]
    assert main(["assignment", "try", str(mine), "--lang", "zh"]) == 1
    shown = capsys.readouterr().out
    assert "它一分没丢" in shown
    for name in ("split.right.py", "scatter.large.py"):
        (mine / "wrong" / name).unlink()
    assert main(["assignment", "try", str(mine)]) == 0
    assert "0 problems to look at" in capsys.readouterr().out


def test_a_wrong_answer_to_no_question_and_numbers_that_tell_nothing_are_told(mine):
    (mine / "wrong" / "spilt.py").write_text(FLOOR)
    with pytest.raises(Problem, match=r"must begin with a question's, such as split\.floor\.py"):
        list(try_answers(load(mine), WAY))
    assert list(find_odd_numbers(load(mine))) == []
    judges = (mine / "judges.py").read_text("utf-8")
    judges = judges.replace(
        '{"base": draw.integer(1000, 9999) if draw else 1234}', '{"base": 7, "spare": 1 if draw else 2}'
    )
    (mine / "judges.py").write_text(judges, "utf-8")
    said = [words.en for words in find_odd_numbers(load(mine))]
    assert said == [
        "base is 7 for everybody", "spare is 1 for everybody", "the number spare stands nowhere in the text",
        "200 of 200 students get the same numbers",
    ]  # fmt: skip


def test_submit_says_what_grading_will_say(tmp_path, monkeypatch, capsys):
    made = release(load("primitives"), tmp_path / "class", [Student("ada", "Ada")], "en").folder
    found = json.loads((made.handout / "ada" / "primitives.ipynb").read_text("utf-8"))
    for cell in found["cells"]:
        if cell["id"] == "split-answer":
            cell["source"] = FLOOR
        if cell["id"] == "gather-answer":
            cell["source"] = (
                "import labkit\ndef gather(outputs, device):\n    return labkit.gather(outputs, device)\n"
            )
    monkeypatch.chdir(tmp_path)
    Path("mine.ipynb").write_text(json.dumps(found), "utf-8")
    assert main(["submit", "mine.ipynb"]) == 0
    shown = capsys.readouterr().out
    assert "on open examples 0 of 4 points" in shown
    assert "rows are lost" in shown
    assert shown.count("labkit.engine.gather does not exist here") == 1
    assert main(["submit", "mine.ipynb", "--quick"]) == 0
    assert "open examples" not in capsys.readouterr().out


def test_check_names_what_is_not_there_for_grading():
    from labkit_classroom import begin, check

    begin("primitives", language="en")
    space = {}
    exec(
        "import labkit as kit\ndef gather(outputs, device):\n    return kit.gather(outputs, device)\n", space
    )
    # Without its source nothing can be said; with it, the name is.
    assert check("primitives.gather", space["gather"]).right
    import linecache

    source = "import labkit as kit\ndef gather(outputs, device):\n    return kit.gather(outputs, device)\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(True), "<cell>")
    exec(compile(source, "<cell>", "exec"), space)
    told = check("primitives.gather", space["gather"])
    assert told.right is False
    assert "labkit.engine.gather" in str(told.text)


def test_a_reply_that_no_judge_can_look_at_costs_its_part_and_a_judge_that_fails_nobody():
    assignment = load(Path(__file__).parent / "attacked")

    def judged(hints):
        part = RubricPart("double", "odd", 2, Words("odd", "怪"), hints)
        double, triple = assignment.questions
        return engine.marked(
            replace(assignment, questions=(replace(double, parts=(part, *double.parts)), triple)),
            {"double": "def double(x):\n    return [x] if isinstance(x, str) else x + x"},
        )["double"]

    def stumbles(ask, draw):
        from attacked import drivers

        if ask(drivers.double, x="a") + "b":
            yield from ()

    mark = judged(stumbles)
    assert (mark.state, mark.points) == ("judged", 4)
    assert mark.parts[0].hint == "no-value"


def test_a_changed_answer_is_judged_on_other_cases():
    def first(answer):
        return draws(b"secret", "1", "small", {"split": answer})("split").integer(0, 1 << 60)

    assert first("a") == first("a") != first("b")
