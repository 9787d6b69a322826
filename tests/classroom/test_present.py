"""What people get to see: feedback pages, the overview, the tables."""

import csv
import io
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest

from labkit.base.language import using
from labkit_classroom.grade.marks import PartMark, QuestionMark, StudentMark, history, read
from labkit_classroom.handout.folder import assignment_of, parse_deadline, release
from labkit_classroom.handout.roster import Student
from labkit_classroom.intake.collecting import take_in
from labkit_classroom.messages import Problem
from labkit_classroom.results.export import as_csv, export
from labkit_classroom.results.present import present
from labkit_cli import main

ROSTER = [
    Student("20231001", "张三", email="z@x.org", more={"班级": "1班"}),
    Student("20231002", '=HYPERLINK("x")<b>'), Student("20231003", "欧阳娜娜"),
    Student("e1", "Ada Lovelace", "en"), Student("e2", "Alan Turing", "en"),
    Student("e3", "Grace Hopper", "en"),
]  # fmt: skip
LOOP = """def split(rows, gpus):
    sizes = []
    left = rows
    while left > 0:
        size = min(-(-rows // gpus), left)
        sizes.append(size)
        left = left - size
    # <script>alert(1)</script>
    return sizes
"""
RENAMED = LOOP.replace("sizes", "out").replace("left", "todo").replace("# <script>alert(1)</script>", "pass")


@pytest.fixture
def folder(small, tmp_path):
    made = release(small, tmp_path / "class", ROSTER, "zh", parse_deadline("2026-12-01 12:00+00:00")).folder
    for student, split in (("20231001", LOOP), ("20231002", None), ("e1", RENAMED), ("e2", "def split(:")):
        hand_in(made, student, split, submitted="2026-12-02T00:00:00+00:00" if student == "e2" else None)
    (made.submitted / "20231003.pdf").write_bytes(b"%PDF")
    grade(made, {"20231001": 1, "20231002": None, "e1": 0.5, "e2": 0})
    return made


def hand_in(folder, student, split, submitted=None):
    found = json.loads((folder.handout / student / "small.ipynb").read_text("utf-8"))
    if split is not None:
        cell = next(cell for cell in found["cells"] if cell["id"] == "split-answer")
        cell["source"] = "# labkit: small.split\n" + split
    if submitted:
        found["metadata"]["labkit"]["submitted"] = submitted
    (folder.submitted / f"{student}.ipynb").write_text(json.dumps(found), "utf-8")


def grade(folder, scores, hint="wrong-rule"):
    """Marks as the engine writes them: ``split`` got this share of its points (None: unanswered)."""
    assignment = assignment_of(folder)
    _, came = take_in(folder, assignment)
    with open(folder.marks, "a", encoding="utf-8") as stream:
        for student, score in scores.items():
            answers = came[student]
            questions = {}
            for question in assignment.questions:
                if question.id != "split" or score is None:
                    questions[question.id] = QuestionMark(0, question.points, [], "unanswered")
                    continue
                told = (
                    ("", "", None) if score == 1 else ("it gives `[4, 4, 1]`", "得到的是 `[4, 4, 1]`", hint)
                )
                parts = [
                    PartMark(part.id, score, part.points * score, told[2], *told[:2])
                    for part in question.parts
                ]
                questions["split"] = QuestionMark(question.points * score, question.points, parts)
            mark = StudentMark(student, answers.digest, "2026-12-02T10:00:00+00:00", questions, answers.notes)
            if before := read(folder.marks).get(student):
                mark = replace(mark, by_hand=before.by_hand)  # as a grading does
            stream.write(json.dumps(asdict(mark)) + "\n")


class Seen(HTMLParser):
    """The text of a page, its tags, and whether they close in order."""

    def __init__(self, page):
        super().__init__()
        self.text, self.open, self.links = "", [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "iframe", "object", "link", "base")
        assert not [name for name, _ in attributes if name.startswith("on")]
        self.links += [value for name, value in attributes if name in ("href", "src", "action")]
        if tag not in ("meta", "br", "rect", "html", "body"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("rect", "html", "body"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def test_every_student_gets_a_page_in_their_language(folder):
    with using("en"):
        written = present(folder)
    pages = {path.stem: path.read_text("utf-8") for path in written}
    assert set(pages) == {"20231001", "20231002", "20231003", "e1", "e2", "overview"}
    seen = {name: Seen(page) for name, page in pages.items()}
    assert 'lang="zh"' in pages["20231001"]
    assert 'lang="en"' in pages["e1"]
    assert "张三 · 20231001" in seen["20231001"].text
    assert "2 / 4" in seen["20231001"].text
    assert "未作答。" in seen["20231001"].text
    assert "it gives [4, 4, 1]" in seen["e1"].text  # and its code in letters of its own
    assert "<code>[4, 4, 1]</code>" in pages["e1"]
    assert "1 / 4" in seen["e1"].text
    assert "late: made at 2026-12-02" in seen["e2"].text
    assert "PDF 文件" in seen["20231003"].text
    assert "没有批改" in seen["20231003"].text
    for student in ("20231001", "e1"):
        others = [other for other in ROSTER if other.id != student]
        assert not [
            other for other in others if other.name in seen[student].text or other.id in seen[student].text
        ]


def test_what_students_wrote_is_text(folder):
    pages = {path.stem: path.read_text("utf-8") for path in present(folder)}
    assert "&lt;script&gt;alert(1)" in pages["20231001"]
    assert "HYPERLINK(&quot;x&quot;)&lt;b&gt;" in pages["20231002"]
    for page in pages.values():
        seen = Seen(page)
        assert seen.open == []
        assert all(link.startswith("../feedback/") for link in seen.links)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_overview_says_what_a_teacher_asks(folder, language):
    with using(language):
        text = Seen(present(folder)[-1].read_text("utf-8")).text
    wanted = {
        "en": ["4 of 6 students graded, 1 with a file that cannot be graded, 1 without a submission, 1 late",
               "To write to: their files cannot be graded", "欧阳娜娜file cannot be graded",
               "Mean 0.75, median 0.5 of 4 points",
               "wrong-rule", "20231003.pdf: it is not a notebook but a PDF", "e3Grace Hoppernothing",
               "Similar answers"],
        "zh": ["6 名学生中批改了 4 名，1 名的文件无法批改，1 名没有提交，1 名迟交", "欧阳娜娜文件无法批改",
               "平均 0.75 分，中位数 0.5 分",
               "得到的是 [4, 4, 1]", "20231003.pdf：它不是笔记本（PDF 文件）", "e3Grace Hopper未提交",
               "相似的答案"],
    }[language]  # fmt: skip
    for words in wanted:
        assert words in text, words
    hints = text[text.index("wrong-rule") - 80 :]
    between = {"en": ", ", "zh": "、"}[language]
    assert f"Ada Lovelace (e1){between}Alan Turing (e2)" in hints
    assert re.search(rf"2张三 \(20231001\){between}Ada Lovelace \(e1\).*?split\d+%", text, re.DOTALL)


def test_a_regrade_shows_what_was(folder):
    present(folder)
    grade(folder, {"e1": 1})
    with using("en"):
        text = Seen(present(folder)[-1].read_text("utf-8")).text
    assert "2 / 4 (was 1)" in text
    assert text.count("(was") == 1


def test_what_cannot_be_graded_is_told_and_is_nobodys_fault(folder):
    lines = folder.marks.read_text("utf-8").splitlines()
    told = json.loads(lines[2])
    told["questions"]["split"] |= {"state": "failed", "points": 0}
    told["questions"]["split"]["parts"][0]["en"] = "ValueError in judges.py"
    told["troubles"] = [{"kind": "died", "en": "it ended its own process\nTraceback", "zh": ""}]
    folder.marks.write_text("\n".join([*lines, json.dumps(told)]) + "\n", "utf-8")
    with using("en"):
        pages = {path.stem: Seen(path.read_text("utf-8")).text for path in present(folder)}
    assert "no fault of yours" in pages["e1"]
    assert "judges.py" not in pages["e1"]
    assert "Ada Lovelace (e1): split could not be graded: ValueError in judges.py" in pages["overview"]
    assert "Ada Lovelace (e1): it ended its own process" in pages["overview"]
    assert "Traceback" not in pages["overview"]
    assert "own process" not in pages["e1"]


def test_nobody_handed_in_yet(small, tmp_path):
    made = release(small, tmp_path / "class", ROSTER, "en").folder
    with using("en"):
        (overview,) = present(made)
    assert "0 of 6 students graded" in Seen(overview.read_text("utf-8")).text


def rows(path):
    content = path.read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    assert b"\r\n" in content
    return list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))


def test_the_table(folder):
    with using("zh"):
        table = rows(export(folder))
    assert [row[:4] for row in table] == [
        ["学号", "姓名", "邮箱", "班级"], ["20231001", "张三", "z@x.org", "1班"],
        ["20231002", '\'=HYPERLINK("x")<b>', "", ""], ["20231003", "欧阳娜娜", "", ""],
        ["e1", "Ada Lovelace", "", ""], ["e2", "Alan Turing", "", ""], ["e3", "Grace Hopper", "", ""],
    ]  # fmt: skip
    assert table[0][4].endswith(" (2)"), "a question's column says its points"
    assert [row[-3:] for row in table[1:]] == [
        ["2", "4", ""], ["0", "4", ""],
        ["", "4", "文件无法批改; 20231003.pdf：它不是笔记本（PDF 文件）：请提交 .ipynb 文件"],
        ["1", "4", ""], ["0", "4", "迟交"], ["", "4", "未提交"],
    ]  # fmt: skip


def test_the_table_is_not_written_over_unless_told(folder):
    export(folder)
    file = folder.teacher / "export" / "marks.csv"
    file.write_text("mine")
    with pytest.raises(Problem, match="exists: --force"):
        export(folder)
    assert file.read_text() == "mine"
    export(folder, force=True)
    assert file.read_text("utf-8") != "mine"


def test_nothing_graded_is_said(small, tmp_path):
    made = release(small, tmp_path / "class", ROSTER, "en").folder
    with pytest.raises(Problem, match="nothing is graded"):
        export(made)


@pytest.mark.parametrize("cell", ["=1+1", "+1 a", "-cmd", "@x", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(cell):
    assert as_csv([[cell]]).lstrip('\ufeff"').startswith("'")


@pytest.mark.parametrize("cell", ["-1", "-1.5", "a=1", "", "2023"])
def test_numbers_and_plain_text_stay(cell):
    assert as_csv([[cell, "x"]]) == f"{cell},x\r\n"


def by_hand(folder, *given, why="as agreed"):
    told = main(["grade", str(folder.path), "--mark", *given, "--why", why, "--lang", "en"])
    page = folder.feedback / f"{given[0]}.html"
    rows = csv.DictReader(io.StringIO(export(folder, force=True).read_text("utf-8-sig")))
    line = next((row for row in rows if row["id"] == given[0]), {})
    return told, Seen(page.read_text("utf-8")).text if page.exists() else "", line


def test_points_by_hand_count_beside_the_automatic_ones_and_outlive_them(folder, capsys):
    most = next(one.points for one in assignment_of(folder).questions if one.id == "split")
    with using("en"):
        told, page, line = by_hand(folder, "e1", "small.split", str(most), why="<b>cell 3</b> was meant")
        assert told == 0
        assert f"Marked by hand ({most / 2:g} points before): <b>cell 3</b> was meant" in page
        assert (line["total"], line["remarks"]) == (f"{most:g}", "by hand: split")
        overview = Seen((folder.teacher / "overview.html").read_text("utf-8")).text
        assert f"split by hand, {most:g} instead of {most / 2:g}: <b>cell 3</b> was meant" in overview
        assert f"{most:g}*" in overview

        grade(folder, {"e1": 0})  # graded again: the teacher's word stands
        assert by_hand(folder, "e3", "split", "1")[2]["total"] == "1"  # of a student who handed in nothing
        assert read(folder.marks)["e1"].points == most
        told, page, line = by_hand(folder, "e1", "split", "auto")
        assert (line["total"], line["remarks"]) == ("0", "")
        assert "by hand" not in page


@pytest.mark.parametrize(("given", "why", "words"), [
    (("e9", "split", "1"), "x", "there is no student 'e9'; there are e"),
    (("e1", "spilt", "1"), "x", "there is no question 'spilt'; there are split"),
    (("e1", "split", "1000"), "x", "must be a number from 0 to"),
    (("e1", "split", "nan"), "x", "must be a number from 0 to"), (("e1", "split", "1"), " ", "say why"),
])  # fmt: skip
def test_points_by_hand_that_make_no_sense_change_nothing(given, why, words, folder, capsys):
    before = folder.marks.read_bytes()
    assert main(["grade", str(folder.path), "--mark", *given, "--why", why, "--lang", "en"]) == 2
    assert words in capsys.readouterr().err
    assert folder.marks.read_bytes() == before


def test_a_new_answer_after_a_mark_by_hand_is_told_to_the_teacher(folder):
    with using("en"):
        by_hand(folder, "e1", "split", "1")
        hand_in(folder, "e1", "def split(rows, gpus):\n    return [rows]\n")
        grade(folder, {"e1": 0})
        present(folder)
        overview = Seen((folder.teacher / "overview.html").read_text("utf-8")).text
    assert "split was marked by hand for an earlier answer" in overview


def test_a_deadline_that_is_moved_is_nobodys_lateness_any_more(folder):
    for deadline, late in (("2026-12-03", False), ("2026-11-30", True)):
        moved = replace(folder, deadline=parse_deadline(deadline))
        moved.save()
        assert main(["grade", str(folder.path), "--trust-students", "--lang", "en"]) == 0
        assert any(note.kind == "late" for note in read(folder.marks)["e2"].notes) is late
    assert len(history(folder.marks)["e2"]) > 1
