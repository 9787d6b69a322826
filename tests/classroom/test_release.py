"""Handing out: an edition for each student, and nothing in it that is the teacher's."""

import inspect
import json
import shutil
from pathlib import Path

import pytest

from labkit_classroom.assignment import load
from labkit_classroom.folders import names
from labkit_classroom.handout.folder import assignment_of, numbers_of, open_class, parse_deadline, release
from labkit_classroom.handout.roster import Student
from labkit_classroom.messages import Problem
from labkit_cli import main

ROSTER = [
    Student("20231001", "张三"), Student("20231002", "李四", "zh"), Student("ada", "Ada Lovelace", "en"),
]  # fmt: skip


COMMON = {"super().__init__()"}


def everything_given_out(folder):
    return {path: path.read_text("utf-8") for path in sorted(folder.handout.rglob("*")) if path.is_file()}


def told_lines(source):
    return {line.strip() for line in source.splitlines() if len(line.strip()) > 12}


@pytest.mark.parametrize("name", [*names(), "small"])
def test_no_solution_no_judge_and_no_secret_is_given_out(name, small, tmp_path):
    assignment = small if name == "small" else load(name)
    made = release(assignment, tmp_path / "class", ROSTER, "zh")
    given = everything_given_out(made.folder)
    assert len(given) == 3
    cells = {
        path: "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        for path, text in given.items()
    }
    usual = assignment.numbers(None)
    # What a judge shares with what is given (a model's definition, an import) is no secret of its own.
    shared = told_lines(assignment.prologue(usual)).union(
        *(told_lines(question.stub(usual)) for question in assignment.questions)
    )
    judges = told_lines(inspect.getsource(assignment._judges)) - shared
    assert any(line.startswith("def ") for line in judges)
    secrets = [made.folder.secret.hex()]
    for student in ROSTER:
        numbers = numbers_of(made.folder, assignment, student.id)
        for question in assignment.questions:
            # Lines that only the solution has; what the stub shows too is meant to be seen.
            # What the notebook gives, as any class of modules says, is not the solution's alone.
            shown = told_lines(assignment.prologue(numbers)) | told_lines(question.stub(numbers)) | COMMON
            shown |= told_lines(assignment.cells("zh", numbers)[0].source)  # the script that is to be changed
            only = told_lines(question.solution(numbers)) - shown
            assert only, question.id
            assert only & told_lines("\n".join(cells.values())) == set(), question.id
    for path, text in given.items():
        assert {line for line in judges if "import" not in line} & told_lines(cells[path]) <= COMMON
        assert "def judge" not in text
        assert "# solution" not in text
        assert not any(secret in text for secret in secrets)
        others = [student for student in ROSTER if student.id != path.parent.name]
        assert not any(made.folder.tag(other.id) in text or other.name in text for other in others)


def test_each_edition_is_in_its_students_language_and_bears_their_tag(small, tmp_path):
    made = release(small, tmp_path / "class", ROSTER, "zh")
    for student, language in (("20231001", "zh"), ("20231002", "zh"), ("ada", "en")):
        found = json.loads((made.folder.handout / student / "small.ipynb").read_text("utf-8"))
        assert found["cells"][0]["source"] == [small.title.in_language(language).join(["# ", ""])]
        assert found["cells"][1]["source"][0] == (
            f"# labkit: small student={student} edition={made.folder.tag(student)}\n"
        )
        assert [cell["id"] for cell in found["cells"]].count("split-answer") == 1
    assert made.folder.tag("20231001") != made.folder.tag("20231002")


def test_releasing_again_adds_who_is_new_and_changes_nothing_else(small, tmp_path):
    path = tmp_path / "class"
    first = release(small, path, ROSTER[:2], "zh", parse_deadline("2026-12-01"))
    before = everything_given_out(first.folder)
    touched = next(iter(before))
    touched.write_text("changed by hand", "utf-8")
    second = release(small, path, ROSTER[1:], "en")
    assert second.folder.secret == first.folder.secret
    assert [file.parent.name for file in second.written] == ["ada"]
    assert [file.parent.name for file in second.kept] == ["20231002"]
    assert [student.id for student in second.gone] == ["20231001"]
    assert touched.read_text("utf-8") == "changed by hand"
    assert open_class(path) == second.folder
    assert second.folder.deadline.strftime("%Y-%m-%d %H:%M") == "2026-12-01 23:59"
    third = release(small, path, ROSTER, "zh", force=True)
    assert third.kept == []
    assert {
        file: text for file, text in everything_given_out(third.folder).items() if file in before
    } == before


def test_a_teacher_who_releases_again_is_told_what_came_what_stayed_and_who_has_gone(
    small, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    command = ["assignment", "release", str(small.folder), "--students", "roster.csv", "--lang", "en"]
    Path("roster.csv").write_text("id,name\n1,Ada\n2,Bob\n3,Cid\n4,Dan\n", "utf-8")
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("Keep small/teacher private")
    Path("roster.csv").write_text("id,name\n2,Bob\n4,Dan\n5,Eve\n", "utf-8")
    assert main([*command, "--deadline", "2026-12-01"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == [
        "1 written, for 3 students: small/handout",
        "2 notebooks already there, unchanged",
        "no longer on the roster, but still in the class: 1, 3",
    ]
    assert told[3].startswith("Deadline: 2026-12-01 23:59")


def test_a_folder_that_is_something_else_is_left_alone(small, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("other", "file"):
        with pytest.raises(Problem, match="exists, and is no class folder"):
            release(small, tmp_path / name, ROSTER, "en")
    release(small, tmp_path / "class", ROSTER, "en")
    with pytest.raises(Problem, match="another release"):
        release(load("crnn"), tmp_path / "class", ROSTER, "en")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_an_assignment_of_the_teachers_own_stays_with_the_class_as_it_was(small, tmp_path):
    mine = shutil.copytree(small.folder, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    made = release(load(mine), tmp_path / "class", ROSTER, "zh")
    shutil.rmtree(mine)
    found = assignment_of(made.folder)
    assert found.name == "mine"
    assert found.folder == (tmp_path / "class" / "teacher" / "assignment" / "mine").resolve()
    assert numbers_of(made.folder, found, "ada") != numbers_of(made.folder, found, "20231001")


@pytest.mark.parametrize(
    "damage", ["{", "{}", '{"labkit class": 2}', "[]", '{"labkit class": 1, "students": 3}']
)
def test_a_damaged_class_file_is_not_written_over(small, tmp_path, damage):
    release(small, tmp_path / "class", ROSTER, "en")
    file = tmp_path / "class" / "teacher" / "class.json"
    file.write_text(damage)
    with pytest.raises(Problem):
        release(small, tmp_path / "class", ROSTER, "en", force=True)
    assert file.read_text() == damage


def test_the_secret_is_not_for_others_on_this_computer(small, tmp_path):
    made = release(small, tmp_path / "class", ROSTER, "en")
    assert made.folder.teacher.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["2026-12-01", "2026/12/01", "2026-12-01 23:59", "2026-12-01T23:59"])
def test_a_deadline_as_somebody_types_it(text):
    assert parse_deadline(text).strftime("%Y-%m-%d %H:%M") == "2026-12-01 23:59"
    assert parse_deadline("2026-12-01 18:00+08:00").isoformat() == "2026-12-01T18:00:00+08:00"
    with pytest.raises(ValueError, match="deadline must be"):
        parse_deadline("tomorrow")


def test_files_are_where_the_folder_says(small, tmp_path):
    made = release(small, tmp_path / "class", ROSTER, "en")
    assert {path.name for path in Path(tmp_path / "class").iterdir()} == {
        "README.txt", "handout", "submitted", "teacher",
    }  # fmt: skip
    assert "teacher/" in (made.folder.path / "README.txt").read_text("utf-8")


@pytest.mark.parametrize(("change", "words"), [
    ({"labkit class": 2}, "is of a newer labkit: update this one"),
    ({"language": "fr"}, "has been changed and cannot be understood. Take it from your backup"),
    ({"secret": "x"}, "has been changed and cannot be understood"),
    ({"students": [{"name": "nobody"}]}, "has been changed and cannot be understood"),
])  # fmt: skip
def test_a_class_file_that_cannot_be_understood_is_told(small, tmp_path, change, words):
    folder = release(small, tmp_path / "class", ROSTER, "zh").folder
    file = folder.teacher / "class.json"
    told = json.loads(file.read_text("utf-8"))
    assert open_class(folder.path) == folder
    file.write_text(json.dumps(told | change), "utf-8")
    with pytest.raises(Problem) as caught:
        open_class(folder.path)
    assert caught.value.en.startswith(f"{file} {words}")


def test_a_class_file_that_cannot_be_read_is_told_with_the_reason(tmp_path):
    (tmp_path / "teacher" / "class.json").mkdir(parents=True)
    with pytest.raises(Problem, match="class.json cannot be read: "):
        open_class(tmp_path)


def test_the_teachers_commands_list_and_write_for_nbgrader(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def told(*words):
        assert main(["assignment", *words, "--lang", "en"]) == 0
        return capsys.readouterr().out.splitlines()

    listed = told("list")
    assert [line.split()[0] for line in listed if not line.startswith(" ")] == names()
    found = load("primitives")
    count = len(found.questions)
    at = listed.index(f"primitives   {found.title}: {count} questions, {found.points} points")
    said = [f"{question.title} ({question.points})" for question in found.questions]
    assert [line.strip() for line in listed[at + 1 : at + 1 + count]] == said
    source = Path("course", "source", "primitives", "primitives.ipynb")
    wrote = told("release", "primitives", "--nbgrader", "course")
    assert wrote[:2] == [str(source), str(Path("course", "nbgrader_config.py"))]
    assert wrote[2].startswith("Next, in course: nbgrader generate_assignment primitives.")
    assert source.is_file()
