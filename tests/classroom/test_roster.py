"""The roster, as Excel, WPS, an LMS and a registrar write it."""

import pytest

from labkit.base.language import using
from labkit_classroom.handout.roster import Student, parse_roster, read_roster
from labkit_classroom.messages import Problem

CHINESE = "学号,姓名,班级\n20231001,张三,计科1班\n20231002,欧阳娜娜,计科1班\n"
CLASS = [
    Student("20231001", "张三", more={"班级": "计科1班"}),
    Student("20231002", "欧阳娜娜", more={"班级": "计科1班"}),
]


@pytest.mark.parametrize("code", ["utf-8", "utf-8-sig", "gbk", "gb18030", "utf-16"])
@pytest.mark.parametrize(
    ("separator", "end"), [(",", "\n"), (",", "\r\n"), ("\t", "\r\n"), (";", "\n"), ("，", "\n")]
)
def test_a_roster_is_read_as_it_was_saved(code, separator, end, tmp_path):
    path = tmp_path / "名单.csv"
    path.write_bytes(CHINESE.replace(",", separator).replace("\n", end).encode(code))
    assert read_roster(path) == CLASS


def test_what_spreadsheets_do_to_ids_is_undone():
    text = '学生学号,姓名\n="00123",甲\n\'00124,乙\n ２０２３ ,丙\n\ufeff\u200b7\t, 丁 \n\n,\n'
    assert [(s.id, s.name) for s in parse_roster(text.encode(), "r")] == [
        ("00123", "甲"), ("00124", "乙"), ("2023", "丙"), ("7", "丁"),
    ]  # fmt: skip


def test_a_mark_before_a_quoted_heading_is_none_of_it():
    assert parse_roster('\ufeff"学号","姓名"\n"1","甲, 乙"\n'.encode(), "r") == [Student("1", "甲, 乙")]


def test_lines_above_the_heading_are_left_out():
    text = "2026 秋季学期点名册,,\n课程：深度学习,,\n序号,学号,姓名\n1,s1,张三\n"
    assert parse_roster(text.encode("gbk"), "r") == [Student("s1", "张三", more={"序号": "1"})]


def test_names_in_two_columns_and_a_language():
    text = "First Name,Last name,Student ID,Lang,Email\nAda,Lovelace,a1,en,ada@x.org\n三,张,a2,中文,\n"
    assert parse_roster(text.encode(), "r") == [
        Student("a1", "Ada Lovelace", "en", "ada@x.org"),
        Student("a2", "张三", "zh"),
    ]


@pytest.mark.parametrize(("text", "english", "chinese"), [
    ("name\n张三\n", "no column of ids", "没有学号这一列"),
    ("班级,学号\n1,s1\n", "line 1: there is no column of names", "第 1 行：没有姓名这一列"),
    ("id,name\n1,甲\n\n1,乙\n", "line 4: the id 1 stands on line 2 already",
     "第 4 行：学号 1 在第 2 行已经出现过"),
    ("id,name\nA1,甲\na1,乙\n", "the id a1 stands on line 2", "学号 a1 在第 2 行"),
    ("id,name\n,甲\n", "line 2: there is no id", "第 2 行：没有学号"),
    ("id,name\n7,\n", "line 2: there is no name", "第 2 行：没有姓名"),
    ("id,name\n2.02310E+11,甲\n", "rounded by a spreadsheet", "科学计数法"),
    ("id,name\n../x,甲\n", "cannot be a folder's name", "不能用作文件夹名"),
    ("id,name\nnul,甲\n", "cannot be a folder's name", "不能用作文件夹名"),
    ("id,name\nx.,甲\n", "cannot be a folder's name", "不能用作文件夹名"),
    ("id,name\n", "nobody in it", "一个学生也没有"), ("", "no column of ids", "没有学号这一列"),
    ("PK\x03\x04 and more", "Excel workbook", "Excel 工作簿"),
])  # fmt: skip
def test_what_is_wrong_is_named_by_its_line(text, english, chinese):
    for language, words in (("en", english), ("zh", chinese)):
        with using(language), pytest.raises(Problem, match="^roster.csv") as caught:
            parse_roster(text.encode(), "roster.csv")
        with using(language):
            assert words in str(caught.value)


def test_all_problems_are_told_at_once():
    text = "id,name\n" + "".join(f"{k},\n" for k in range(14)) + "x,甲\n"
    with pytest.raises(Problem, match="line 2: there is no name; line 3.*line 11: .*; and 4 more$"):
        parse_roster(text.encode(), "r")


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path):
    with pytest.raises(Problem, match="none of UTF-8, UTF-16 and GBK"):
        parse_roster(b"id,name\n\xff\xff\xff\n", "r")
    with pytest.raises(Problem, match="cannot be read"):
        read_roster(tmp_path / "none.csv")


def test_a_language_that_labkit_does_not_speak_is_told_and_stops_nobody():
    told = []
    found = parse_roster("id,name,lang\n7,甲,fr\n8,乙,zh\n".encode(), "roster.csv", told=told)
    assert [(one.id, one.language) for one in found] == [("7", None), ("8", "zh")]
    assert [one.en for one in told] == [
        "roster.csv, line 2: the language 'fr' is none of en, zh: the class's counts"
    ]
    assert "第 2 行" in told[0].zh


def test_columns_may_have_any_title_if_it_is_named():
    content = b"Kennziffer;Person;E-Mail\n7;Ada;a@x.org\n"
    with pytest.raises(Problem, match="--columns id=TITLE"):
        parse_roster(content, "roster.csv")
    (ada,) = parse_roster(content, "roster.csv", {"id": "Kennziffer", "name": "PERSON"})
    assert (ada.id, ada.name, ada.email) == ("7", "Ada", "a@x.org")
    with pytest.raises(Problem, match="not number"):
        parse_roster(content, "roster.csv", {"number": "Kennziffer"})
    assert parse_roster(b"Matrikelnummer,Name\n7,Ada\n", "roster.csv")[0].id == "7"


def test_a_file_too_large_for_a_roster_and_a_field_too_long_are_refused(tmp_path):
    path = tmp_path / "video.csv"
    with open(path, "wb") as stream:
        stream.truncate(10_000_001)
    with pytest.raises(Problem, match=f"^{path} is too large for a roster$"):
        read_roster(path)
    with pytest.raises(Problem, match=r"^line 2: field larger than field limit \(131072\)$"):
        parse_roster(b"id,name\n1," + b"x" * 131_073, "r")
