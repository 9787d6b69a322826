"""A teacher's day with Canvas and with Moodle: rosters, archives of submissions, imports of grades."""

import csv
import io
import json
import zipfile
from pathlib import Path

import pytest

from labkit_classroom.grade import class_grading
from labkit_classroom.grade.marks import QuestionMark, StudentMark
from labkit_classroom.grade.submission import Graded
from labkit_classroom.results import export as exporting
from labkit_cli import main

RIGHT = "def split(rows, gpus):\n    size = -(-rows // gpus)\n    full, rest = divmod(rows, size)\n    return [size] * full + [rest] * (rest > 0)\n"  # noqa: E501
CANVAS = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Quiz (881),Current Score,Unposted Final Score
,,,,,Manual Posting,,
    Points Possible,,,,,10,(read only),(read only)
"Lovelace, Ada",4711,s0001,ada@x.org,CS 1,9,90,90
"Hopper, Grace",4712,s0002,grace@x.org,CS 1,,,
"Turing, Alan",4713,s0003,alan@x.org,CS 1,,,
"Student, Test",4799,,6f2a,CS 1,,,
"""
WORKSHEET = """Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,Last modified (submission),Last modified (grade),Feedback comments
Participant 31337,Ada Lovelace,ada@x.org,Submitted for grading,,100.00,Yes,"Monday, 30 November 2026, 9:00 PM",-,
Participant 31338,Grace Hopper,grace@x.org,Submitted for grading,,100.00,Yes,-,-,
Participant 31339,Alan Turing,alan@x.org,No submission,,100.00,Yes,-,-,
"""  # noqa: E501
PARTICIPANTS = "First name,Last name,ID number,Email address,Groups\nAda,Lovelace,31337,ada@x.org,\n"


@pytest.fixture(autouse=True)
def judged(monkeypatch):
    """Give full points for each answered question: judging has tests of its own."""

    def judge(orders, *config):
        for student, answers, _ in orders:
            marks = {id: QuestionMark(2.0 * (source is not None), 2) for id, source in answers.items()}
            yield student, Graded(marks, []), 0.0

    monkeypatch.setattr(class_grading, "_by_judges", judge)


def answer(folder, student):
    """The student's edition with an answer to the first question, as JSON."""
    found = json.loads((folder / "handout" / student / "small.ipynb").read_text("utf-8"))
    for cell in found["cells"]:
        if cell["id"] == "split-answer":
            cell["source"] = "# labkit: small.split\n" + RIGHT
    return json.dumps(found)


def pack(folder, files):
    with zipfile.ZipFile(folder / "submitted" / "submissions.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def release(small, roster, *more):
    Path("roster.csv").write_text(roster, "utf-8")
    options = ["--students", "roster.csv", "--to", "class", *more, "--lang", "en"]
    assert main(["assignment", "release", str(small.folder), *options]) == 0
    return Path("class")


def grade_and_export(folder, form, *more):
    assert main(["grade", str(folder), "--trust-students", "--lang", "en"]) == 0
    assert main(["assignment", "export", str(folder), "--form", form, *more, "--lang", "en"]) == 0
    return list(csv.reader(io.StringIO((folder / f"teacher/export/{form}.csv").read_text("utf-8"))))


def import_into_canvas(table, students):
    """Read a table as the gradebook of Canvas does: points by Canvas's number, and the points possible."""
    header, *rows = table
    assert "Student" in header[0]
    assert "ID" in header[1]
    assert (header[2:4], header[4]) == (["SIS User ID", "SIS Login ID"], "Section")
    found, possible = {}, None
    for row in rows:
        if "Points Possible" in row[0]:
            possible = row[5]
            continue
        number = int(row[1]) if row[1] else None
        found[number if number in students else {sis: number for number, sis in students.items()}[row[2]]] = (
            row[5]
        )
    return header[5], possible, found


def test_a_day_with_canvas(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = release(small, CANVAS, "--deadline", "2026-12-01", "--late", "10%")
    assert sorted(path.name for path in (folder / "handout").iterdir()) == ["4711", "4712", "4713"]
    told = capsys.readouterr()
    assert "loses 10 % of its points for each day begun" in told.out
    assert "loses 10 %" in answer(folder, "4711")
    pack(folder, {
        "lovelaceada_4711_90210_small-1.ipynb": answer(folder, "4711"),
        "hoppergrace_LATE_4712_90211_small.pdf": "%PDF-1.7",
    })  # fmt: skip
    table = grade_and_export(folder, "canvas", "--title", "Lab 1 (882)")
    assert import_into_canvas(table, {4711: "s0001", 4712: "s0002", 4713: "s0003"}) == (
        "Lab 1 (882)", "4", {4711: "2", 4712: "", 4713: ""},
    )  # fmt: skip
    told = capsys.readouterr().out
    assert "1 with a file that cannot be graded, 1 handed in nothing" in told
    assert "to write to about their files: 4712" in told  # Canvas gives no address
    # The roster of another system: ids of the institution.
    other = release_other(small, tmp_path, monkeypatch)
    assert import_into_canvas(other, {4711: "s0001"})[2] == {4711: "2"}


# What Canvas's importer takes from the gradebook's header; the rest are assignments (instructure/canvas-lms,
# lib/gradebook_importer.rb at 00b222d7).
CANVAS_DROPS = (
    "Final Grade", "My Final Score", "Unposted Current Points", "Override Status (Fall)", "Section", "ID", "LastName",
)  # fmt: skip
CANVAS_TAKES = (
    "final grade",
    "Final",
    "Sections",
    "Current Events (7)",
    "Override 2",
    "ID check",
    "期末 Grade",
)


@pytest.mark.parametrize("title", CANVAS_DROPS + CANVAS_TAKES)
def test_no_title_is_exported_that_canvas_would_drop(small, tmp_path, monkeypatch, capsys, title):
    monkeypatch.chdir(tmp_path)
    folder = release(small, "id,name\ns0001,Ada Lovelace\n")
    monkeypatch.setattr(exporting, "read", lambda path: {"s0001": StudentMark("s0001", "", "", {})})
    export = ["assignment", "export", str(folder), "--form", "canvas", "--lang", "en", "--title", title]
    if title in CANVAS_TAKES:
        assert main(export) == 0
        table = (folder / "teacher/export/canvas.csv").read_text("utf-8")
        assert import_into_canvas(list(csv.reader(io.StringIO(table))), {1: "s0001"})[0] == title
    else:
        assert main(export) == 2
        assert title in (told := capsys.readouterr().err)
        assert "--title" in told
        assert not (folder / "teacher/export").exists()


def release_other(small, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    folder = release(small, "id,name\ns0001,Ada Lovelace\n")
    pack(folder, {"x.ipynb": answer(folder, "s0001")})
    return grade_and_export(folder, "canvas")


def test_a_day_with_moodle(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = release(small, WORKSHEET)
    pack(folder, {
        "Ada Lovelace_31337_assignsubmission_file_/small.ipynb": answer(folder, "ada@x.org"),
        "Grace Hopper_31338_assignsubmission_file_/small.docx": "PK\x03\x04",
    })  # fmt: skip
    header, *rows = grade_and_export(folder, "moodle")
    # What Moodle's offline grading looks for; a row without a grade changes nothing.
    assert {"Identifier", "Grade", "Last modified (grade)", "Feedback comments"} <= set(header)
    grades = {row[header.index("Identifier")]: row[header.index("Grade")] for row in rows}
    assert grades == {"Participant 31337": "2", "Participant 31338": "", "Participant 31339": ""}
    assert "to write to about their files: grace@x.org" in capsys.readouterr().out


def test_grades_by_id_number_for_moodles_gradebook(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = release(small, PARTICIPANTS)
    pack(folder, {"Ada Lovelace_9_assignsubmission_file_small.ipynb": answer(folder, "31337")})
    header, row = grade_and_export(folder, "moodle")
    assert "Identifier" not in header
    assert dict(zip(header, row, strict=True)).items() >= {
        "ID number": "31337", "Email address": "ada@x.org", "Grade": "2", "Maximum Grade": "4",
    }.items()  # fmt: skip


def test_identifiers_reach_the_platforms_unchanged(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = release(small, "id,name,email\n@ada,Ada,ada@x.org\nbob,Bob,\n")
    pack(folder, {"@ada.ipynb": answer(folder, "@ada"), "bob.ipynb": answer(folder, "bob")})
    header, *rows = grade_and_export(folder, "moodle")
    assert "Email address" not in header, "Moodle would give Bob's marks to Ada, whose row is above"
    assert [row[header.index("ID number")] for row in rows] == ["@ada", "bob"]
    header, _, *rows = grade_and_export(folder, "canvas")
    assert [(row[0], row[header.index("SIS User ID")]) for row in rows] == [("Ada", "@ada"), ("Bob", "bob")]


def test_one_student_is_graded_again(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = release(small, "id,name\na,Ada\nb,Bob\n")
    pack(folder, {f"{id}.ipynb": answer(folder, id) for id in "ab"})
    for again, lines in (["--again", "b"], ["b"]), (["--again"], ["a", "b"]):
        assert main(["grade", "class", "--trust-students", "--lang", "en"]) == 0
        capsys.readouterr()
        assert main(["grade", "class", *again, "--trust-students", "--lang", "en"]) == 0
        told = capsys.readouterr().out
        assert sorted(line.split()[1] for line in told.splitlines() if line.startswith("[")) == lines
    assert main(["grade", "class", "--again", "c", "--trust-students", "--lang", "en"]) == 2
    assert "there is no student 'c'; there are a, b" in capsys.readouterr().err


@pytest.mark.parametrize(("language", "past", "wrong"), [
    ("en", "has already passed", "none, zero, or a share"), ("zh", "已经过了", "none、zero，或每天扣的比例"),
])  # fmt: skip
def test_a_past_deadline_and_an_invalid_rule_are_said(
    small, tmp_path, monkeypatch, capsys, language, past, wrong
):
    monkeypatch.chdir(tmp_path)
    Path("r.csv").write_text("id,name\na,Ada\n", "utf-8")
    words = [
        "assignment",
        "release",
        str(small.folder),
        "--students",
        "r.csv",
        "--to",
        "c",
        "--lang",
        language,
    ]
    assert main([*words, "--deadline", "2020-01-01"]) == 0
    assert past in capsys.readouterr().err
    assert main([*words, "--late", "half"]) == 2
    assert wrong in " ".join(capsys.readouterr().err.split())
