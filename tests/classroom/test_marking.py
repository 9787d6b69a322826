"""A class graded: marks on the disk one by one, killed and run again, whatever stands in the folder of submissions."""

import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sandboxed

from labkit_classroom.grade import class_grading as marking
from labkit_classroom.grade import marks
from labkit_classroom.grade.marks import PartMark, QuestionMark, StudentMark
from labkit_classroom.grade.submission import Graded
from labkit_classroom.messages import Problem, Remark
from labkit_classroom.sandbox import isolation
from labkit_cli import main

HERE = Path(__file__).parent

WAY = sandboxed.way()


def mark(student, points=2.0, **more):
    parts = [PartMark("rule", points / 2, 2, None if points == 2 else "rule", "wrong", "错")]
    return StudentMark(
        student, "d", "2026-11-22T09:00:00+08:00", {"split": QuestionMark(points, 2, parts)}, **more
    )


def test_a_mark_says_to_the_second_and_with_its_zone_when_it_was_made():
    before = datetime.now(UTC).replace(microsecond=0)
    told = datetime.fromisoformat(marks.current_time())
    assert told.utcoffset() is not None
    assert told.microsecond == 0
    assert before <= told <= datetime.now(UTC)


def test_marks_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "teacher" / "marks.jsonl"
    given = [
        mark("1"),
        mark("2", 1, notes=[Remark("late", "late", "迟交")], troubles=[Remark("cpu", "too much", "过多")]),
    ]
    given[0] = replace(
        given[0], by_hand={"double": marks.ByHand(3.0, "as agreed", given[0].when, "x")}, share=0.9
    )
    with marks.writing(path) as add:
        for one in given:
            add(one)
    assert marks.read(path) == {"1": given[0], "2": given[1]}
    assert os.stat(path).st_mode & 0o077 == 0


def test_the_last_mark_counts_and_the_former_stays(tmp_path):
    path = tmp_path / "marks.jsonl"
    for points in (1, 2):
        with marks.writing(path) as add:
            add(mark("1", points))
    assert marks.read(path)["1"].points == 2
    assert len(path.read_text().splitlines()) == 2


def test_wherever_a_line_is_torn_the_marks_before_it_are_there_and_the_next_is_whole(tmp_path):
    path = tmp_path / "marks.jsonl"
    with marks.writing(path) as add:
        add(mark("1"))
        add(mark("学生"))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        assert list(marks.read(path)) == ["1"]
        with marks.writing(path) as add:
            add(mark("3"))
        assert list(marks.read(path)) == ["1", "3"]


EARLIER_HAND = (
    '{"student": "1", "question": "split", "points": 3, "digest": "d", "why": "agreed", "when": "…"}'
)


@pytest.mark.parametrize("line", ['{"student": 7}', EARLIER_HAND, "{"])
def test_a_changed_line_is_not_passed_over(line, tmp_path):
    path = tmp_path / "marks.jsonl"
    with marks.writing(path) as add:
        add(mark("1"))
    path.write_bytes(path.read_bytes() + line.encode() + b"\n")
    before = path.read_bytes()
    with pytest.raises(Problem, match="line 2") as raised:
        marks.read(path)
    for words in raised.value.en, raised.value.zh:
        assert str(path) in words
        assert "--mark" in words, "how to set points by hand again"
        assert line == "{" or "'questions'" in words, "what is missing"
    with pytest.raises(Problem, match="line 2"), marks.writing(path):
        pass
    assert path.read_bytes() == before


def test_two_gradings_do_not_write_at_once(tmp_path):
    path = tmp_path / "marks.jsonl"
    with marks.writing(path), pytest.raises(Problem, match="another"), marks.writing(path):
        pass


def class_of(path, count, answer=None):
    """A class folder with ``count`` students who all handed in the untouched edition, or ``answer``."""
    from labkit_classroom.assignment import load
    from labkit_classroom.handout.folder import release
    from labkit_classroom.handout.roster import Student

    students = [Student(f"s{k:03}", f"学生{k}") for k in range(count)]
    folder = release(load(HERE / "attacked"), path, students, "en").folder
    for student in students:
        hand_in(folder, student.id, answer)
    return folder


def hand_in(folder, student, answer=None, name=None):
    notebook = json.loads((folder.handout / student / "attacked.ipynb").read_text("utf-8"))
    for cell in notebook["cells"]:
        told = cell["metadata"].get("labkit", {})
        if answer and told.get("role") == "answer":
            cell["source"] = f"# labkit: attacked.{told['question']}\n{answer[told['question']]}"
    (folder.submitted / (name or f"{student}.ipynb")).write_text(json.dumps(notebook), "utf-8")


ANSWER = {"double": "def double(x):\n    return x + x", "triple": "def triple(x):\n    return x"}
GRADE = [sys.executable, "-m", "labkit", "grade"]


def no_judges(orders, *config):
    """In place of the judges' processes: a mark at once, so that killing meets the writing."""
    for order in orders:
        question = QuestionMark(2.0, 2, [PartMark("ints", 1.0, 2, zh="学" * 2000)])
        yield order[0], Graded({"double": question}, []), 0.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, to kill")
def test_killed_at_any_moment_no_mark_is_lost_or_doubled(tmp_path, monkeypatch):
    """SIGKILL at 40 random points, and half a line left: every mark stays, and no student is graded twice."""
    monkeypatch.setattr(marking, "_by_judges", no_judges)
    folder = class_of(tmp_path / "class", 30)
    draw, kills = random.Random(3), 0
    before = b""
    for _ in range(40):
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            # Each mark is told; the parent kills at the n-th, wherever the child is by then.
            marking.mark_class(folder, WAY, 1, tell=lambda *mark, to=tell: os.write(to, b"."))
            os._exit(0)
        os.close(tell)
        for _ in range(draw.randint(0, 2)):
            os.read(told, 1)
        os.kill(child, signal.SIGKILL)
        kills += os.waitpid(child, 0)[1] == signal.SIGKILL
        os.close(told)
        content = folder.marks.read_bytes() if folder.marks.exists() else b""
        assert content.startswith(before[: before.rfind(b"\n") + 1]), "a mark that was there has changed"
        before = content
        if draw.random() < 0.5:  # what a kill in the midst of a write leaves
            line = json.dumps({"student": "s029", "digest": "学" * 99}, ensure_ascii=False).encode()
            with open(folder.marks, "ab") as stream:
                stream.write(line[: draw.randint(1, len(line))])
        if len(marks.read(folder.marks)) == 30:
            folder.marks.unlink()
            before = b""
    assert kills >= 30
    done = marking.mark_class(folder, WAY, 1)
    students = [json.loads(line)["student"] for line in folder.marks.read_text("utf-8").splitlines()]
    assert sorted(students) == sorted(folder.students)
    assert len(done.kept) + len(done.graded) == 30
    assert not marking.mark_class(folder, WAY, 1).graded


def test_a_class_with_hostile_files_is_graded_and_said_so(tmp_path):
    """The whole command, once: honest marks are right, what is odd is told, and a second run changes nothing."""
    folder = class_of(tmp_path / "class", 4, ANSWER)
    submitted = folder.submitted
    evil = dict(ANSWER, double="import os\ndef double(x):\n    os._exit(0)")
    hand_in(folder, "s001", evil)
    hand_in(folder, "s002", name="s003-mine.ipynb")  # another's edition, under the id of s003
    (submitted / "s002.ipynb").unlink()
    (submitted / "broken.ipynb").write_text('{"cells": [')
    (submitted / "deep.ipynb").write_text('{"cells":' + "[" * 100_000)
    (submitted / "many.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": "1"}] * 100_000})
    )
    (submitted / "link.ipynb").symlink_to(folder.teacher / "class.json")
    (submitted / "folder").symlink_to(folder.teacher)
    os.mkfifo(submitted / "pipe.ipynb")
    kernel = json.loads((submitted / "s003.ipynb").read_text("utf-8"))
    kernel["metadata"]["kernelspec"] = {"name": "julia", "language": "julia", "display_name": "x"}
    (submitted / "s003.ipynb").write_text(json.dumps(kernel), "utf-8")
    command = [*GRADE, str(folder.path), "--jobs", "2", "--trust-students"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = marks.read(folder.marks)
    assert {student: mark.points for student, mark in found.items()} == {"s000": 4, "s001": 0, "s003": 4}
    assert [note.kind for note in found["s001"].troubles] == ["died"] * len(found["s001"].troubles) != []
    assert "[3/3]" in done.stdout
    for name in ("s003-mine", "broken", "deep", "many", "link", "pipe"):
        assert name in done.stdout
    assert folder.secret.hex() not in done.stdout + folder.marks.read_text("utf-8")
    before = folder.marks.read_bytes()
    assert marking.mark_class(folder, WAY, 1).kept == ["s000", "s001", "s003"]
    assert folder.marks.read_bytes() == before


def test_a_judge_whose_process_dies_costs_nobody_else(tmp_path, monkeypatch):
    """TrialResult twice, then told; the next grading takes it up again."""
    folder = class_of(tmp_path / "class", 3, ANSWER)
    lane = (
        "import os, pickle, sys\nfrom labkit_classroom.grade.submission import Graded\n"
        "orders, told = sys.stdin.buffer, sys.stdout.buffer\npickle.load(orders)\n"
        "while True:\n    student, _, _ = pickle.load(orders)\n"
        "    if student == 's001': os._exit(3)\n"
        "    pickle.dump(Graded({}, []), told)\n    told.flush()\n"
    )
    real = subprocess.Popen
    monkeypatch.setattr(
        marking.subprocess, "Popen", lambda command, **more: real([sys.executable, "-c", lane], **more)
    )
    done = marking.mark_class(folder, WAY, 1)
    assert {mark.student: mark.has_failed for mark in done.graded} == {
        "s000": False,
        "s001": True,
        "s002": False,
    }
    again = marking.mark_class(folder, WAY, 1)
    assert [mark.student for mark in again.graded] == ["s001"]


def test_where_there_is_no_sandbox_strangers_are_refused_and_trusted_students_graded(tmp_path, monkeypatch):
    from labkit_classroom.assignment import load
    from labkit_classroom.grade.submission import draws, grade
    from labkit_classroom.sandbox.workers import Limits

    monkeypatch.setattr(isolation, "try_sandboxes", lambda: {"root": "no", "user": "no"})
    with pytest.raises(Problem, match="--trust-students"):
        isolation.best_sandbox()
    assert isolation.best_sandbox(trust=True) == "bare"
    assert "Strangers' code is not graded here" in isolation.sandbox_report()
    assignment, answers = (
        load(HERE / "attacked"),
        dict(ANSWER, triple="def triple(x):\n    import os; os._exit(0)"),
    )
    limits = Limits(wall=100)
    with closing(isolation.start_server("bare", assignment.preload)) as workers:
        found = grade(assignment, answers, {}, draws(b"s", "1", "attacked", answers), workers, limits)
    assert [question.points for question in found.questions.values()] == [4, 0]
    assert [note.kind for note in found.troubles] == ["died"]


def test_a_file_alone_is_graded_for_continuous_integration(tmp_path):
    """Exit code 0 for all points, 1 for fewer, 2 for what is no assignment; the marks as JSON."""
    from labkit_classroom.assignment import load
    from labkit_classroom.handout.folder import release
    from labkit_classroom.handout.roster import Student

    assignment = load("primitives")
    folder = release(assignment, tmp_path / "class", [Student("1", "Ann")], "en").folder
    file = folder.handout / "1" / "primitives.ipynb"
    command = [*GRADE, str(file), "--json", "--trust-students"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    told = json.loads(done.stdout)
    assert (done.returncode, told["points"], told["of"]) == (1, 0, assignment.points), done.stderr
    assert {question["state"] for question in told["questions"].values()} == {"unanswered"}
    (tmp_path / "other.ipynb").write_text('{"cells": []}')
    command = [*GRADE, str(tmp_path / "other.ipynb"), "--json", "--trust-students"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert "holds none of the assignments" in done.stderr


@pytest.mark.parametrize(("words", "told"), [
    ([], "name a class's folder or a notebook"), (["none"], "none does not exist"),
    ([".", "--why", "x"], "--why goes with --mark"),
])  # fmt: skip
def test_a_grading_that_names_too_little_is_one_line(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["grade", *words, "--lang", "en"]) == 2
    assert capsys.readouterr().err == f"labkit: {told}\n"


def test_the_report_of_walls_is_printed_and_says_whether_there_is_one(monkeypatch, capsys):
    for why, code in (("", 0), ("no", 1)):
        monkeypatch.setattr(isolation, "try_sandboxes", lambda why=why: {"root": "no", "user": why})
        assert main(["grade", "--isolation", "--lang", "en"]) == code
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if not line.startswith(" ")][:2] == [
            "root: no: no",
            "user: no: no" if why else "user: works here",
        ]
        assert ("Strangers' code is not graded here" in lines[-1]) == bool(why)


def test_another_system_than_linux_has_no_wall_and_says_so(monkeypatch):
    monkeypatch.setattr(isolation.sys, "platform", "darwin")
    assert isolation.try_sandboxes.__wrapped__() == dict.fromkeys(
        ("root", "user"), "darwin has no namespaces"
    )


def test_a_template_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(
        isolation, "python_command", lambda *_: [sys.executable, "-c", "raise SystemExit('no room')"]
    )
    with pytest.raises(isolation.CannotStart, match="^no room"):
        isolation.SandboxServer(WAY)


@pytest.mark.parametrize("given_up", [True, False])
def test_judges_of_a_grading_that_is_given_up_are_killed_and_else_waited_for(monkeypatch, given_up):
    class Judge:
        def __init__(self):
            self.stdin, self.ended = io.BytesIO(), []
            self.stdout = io.BytesIO(b"".join(pickle.dumps(Graded({}, [])) for _ in orders))
            self.kill, self.communicate = (
                lambda word=word: self.ended.append(word) for word in ("kill", "wait")
            )

    orders = [(student, {}, {}) for student in "abc"]
    judges = []
    monkeypatch.setattr(marking, "_judge", lambda config: judges.append(Judge()) or judges[-1])
    found = marking._by_judges(orders, 1, "config")
    first = next(found)
    assert (first[0] in "abc", first[1]) == (True, Graded({}, []))
    if given_up:
        found.close()
    else:
        assert len(list(found)) == 2
    assert [judge.ended for judge in judges] == [["kill", "wait"] if given_up else ["wait"]]
