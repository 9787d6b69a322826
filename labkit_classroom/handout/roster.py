"""Read the roster from a CSV file of Excel, WPS, a learning platform or a registrar's system.

The file may be in UTF-8, UTF-16 or GBK, separated by commas, semicolons or tabs, with lines above its heading. All
problems are reported together, with their lines.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.base.files import reason
from labkit.base.language import LANGUAGES, series

from ..messages import Problem

# Names of columns in lower case, by kind.
_TITLES = Path(__file__).with_suffix(".txt").read_text("utf-8")
_COLUMNS = {kind: titles.split(", ") for kind, titles in re.findall(r"^(\w+): (.*)$", _TITLES, re.MULTILINE)}
_LANGUAGES = {"en": "en", "english": "en", "英文": "en", "英语": "en",
              "zh": "zh", "中文": "zh", "汉语": "zh", "chinese": "zh", "zh-cn": "zh"}  # fmt: skip
_MOST_BYTES = 10_000_000
_MOST_TOLD = 10
_HEADING_WITHIN = 10  # lines
# An id is also the name of a folder.
_ID = re.compile(r"[\w@][\w.@-]{0,63}(?<!\.)")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
# Excel turns a long number into 2.02310E+11.
_ROUNDED = re.compile(r"\d(\.\d+)?E\+\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Student:
    """A student of the roster. ``language``: None without one; ``more``: the values of other columns by title."""

    id: str
    name: str
    language: str | None = None
    email: str = ""
    more: Mapping[str, str] = field(default_factory=dict)


def read_roster(
    path: Path, called: Mapping[str, str] | None = None, told: list[Problem] | None = None
) -> list[Student]:
    """Read the students in the order of the file. Raise Problem with all invalid lines.

    called   titles of columns in this roster: kind ("id", "name", "first", "last", "language", "email") -> title.
    told     a list for warnings, such as an unknown language.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise Problem(en=f"{path} is too large for a roster", zh=f"{path} 太大，不像是学生名单")
        content = path.read_bytes()
    except OSError as error:
        raise Problem(
            en=f"{path} cannot be read: {reason(error)}", zh=f"无法读取 {path}：{reason(error)}"
        ) from error
    return parse_roster(content, str(path), called, told)


def parse_roster(
    content: bytes, name: str, called: Mapping[str, str] | None = None, told: list[Problem] | None = None
) -> list[Student]:
    """Parse the ``content`` of a file called ``name`` as :func:`read_roster` does."""
    rows = _rows(_text(content, name))
    titles = {kind: [_clean(title).casefold()] for kind, title in (called or {}).items()}
    if unknown := titles.keys() - _COLUMNS.keys():
        kinds, listed = series(sorted(unknown)), series(_COLUMNS)
        raise Problem(en=f"a column is one of {listed}, not {kinds}", zh=f"列只有 {listed}，没有 {kinds}")
    titles = _COLUMNS | titles
    top = [(at, _columns(row, titles)) for at, (_, row) in enumerate(rows[:_HEADING_WITHIN])]
    # Moodle hides ID numbers from most teachers: an email address identifies a student, too.
    names = {"name"}, {"first", "last"}
    by_email = [
        (at, found) for at, found in top if "email" in found and any(one <= found.keys() for one in names)
    ]
    top += [(at, found | {"id": found["email"]}) for at, found in by_email]
    heading, columns = next(((at, found) for at, found in top if "id" in found), (None, {}))
    if heading is None:
        raise Problem(
            en=f"{name}: there is no column of ids. The first line should name the columns, such as id,name or "
            "学号,姓名; a column with another title is named by --columns id=TITLE",
            zh=f"{name}：没有学号这一列。第一行要写列名，例如 学号,姓名；列名不同时用 --columns id=列名 指出",
        )
    if "name" not in columns and not {"first", "last"} <= columns.keys():
        raise Problem(
            en=f"{name}, line {rows[heading][0]}: there is no column of names (name, or 姓名)",
            zh=f"{name} 第 {rows[heading][0]} 行：没有姓名这一列",
        )
    students: list[Student] = []
    wrong: list[Problem] = []
    lines: dict[str, int] = {}
    for line, row in rows[heading + 1 :]:
        if not {"Points Possible", "Manual Posting", "Student, Test"}.isdisjoint(
            row
        ):  # Canvas's, of no student
            continue
        try:
            student, odd = _student(row, columns, rows[heading][1])
            if odd is not None and told is not None:
                told.append(Problem(en=f"{name}, line {line}: {odd.en}", zh=f"{name} 第 {line} 行：{odd.zh}"))
            if student.id.casefold() in lines:  # many systems would use one folder for both
                raise Problem(
                    en=f"the id {student.id} stands on line {lines[student.id.casefold()]} already",
                    zh=f"学号 {student.id} 在第 {lines[student.id.casefold()]} 行已经出现过",
                )
        except Problem as error:
            wrong.append(Problem(en=f"line {line}: {error.en}", zh=f"第 {line} 行：{error.zh}"))
            continue
        lines[student.id.casefold()] = line
        students.append(student)
    if wrong:
        first, more = wrong[:_MOST_TOLD], len(wrong) - _MOST_TOLD
        en, zh = "; ".join(one.en for one in first), "；".join(one.zh for one in first)
        if more > 0:
            en, zh = f"{en}; and {more} more", f"{zh}；另有 {more} 处"
        raise Problem(en=f"{name}: {en}", zh=f"{name}：{zh}")
    if not students:
        raise Problem(en=f"{name}: there is nobody in it", zh=f"{name}：里面一个学生也没有")
    return students


def _text(content: bytes, name: str) -> str:
    if content.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise Problem(
            en=f"{name} is an Excel workbook: save it as “CSV UTF-8” and name that file",
            zh=f"{name} 是 Excel 工作簿：请另存为“CSV UTF-8（逗号分隔）”，再用那个文件",
        )
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    # gb18030 is what Excel in China writes, GBK and more.
    for code in ["utf-16"] if wide else ["utf-8-sig", "gb18030"]:
        try:
            return content.decode(code)
        except UnicodeDecodeError:
            continue
    raise Problem(
        en=f"{name} is in none of UTF-8, UTF-16 and GBK: save it as “CSV UTF-8”",
        zh=f"{name} 的编码不是 UTF-8、UTF-16 或 GBK：请另存为“CSV UTF-8（逗号分隔）”",
    )


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """Return (line number, fields) of each line that is not empty."""
    top = "\n".join(text.splitlines()[:_HEADING_WITHIN])
    separator = max(",;\t，", key=top.count)
    reader = csv.reader(text.splitlines(), delimiter=separator)
    found = []
    try:
        for row in reader:
            fields = [_clean(value) for value in row]
            if any(fields):
                found.append((reader.line_num, fields))
    except csv.Error as error:
        raise Problem(en=f"line {reader.line_num}: {error}", zh=f"第 {reader.line_num} 行：{error}") from None
    return found


def _clean(value: str) -> str:
    """Normalize a field: full-width digits, odd blanks, and Excel's marks of numbers as text."""
    value = unicodedata.normalize("NFKC", value)
    value = "".join(letter for letter in value if unicodedata.category(letter) not in ("Cf", "Cc")).strip()
    if found := re.fullmatch(r'="?(.*?)"?', value):
        value = found[1]
    return value.removeprefix("'").strip()


def _columns(row: list[str], titles: Mapping[str, list[str]]) -> dict[str, int]:
    """Return the index of each kind of column."""
    found: dict[str, int] = {}
    for kind, names in titles.items():
        for at, title in enumerate(row):
            if title.casefold() in names:
                found.setdefault(kind, at)
    return found


def _student(row: list[str], columns: dict[str, int], heading: list[str]) -> tuple[Student, Problem | None]:
    """Return the student of a line, and a warning, if any."""
    given = dict.fromkeys(_COLUMNS, "") | {kind: row[at] for kind, at in columns.items() if at < len(row)}
    language, odd = given["language"], None
    if language and language.casefold() not in _LANGUAGES:
        known = ", ".join(LANGUAGES)
        odd = Problem(
            en=f"the language {language!r} is none of {known}: the class's counts",
            zh=f"语言 {language!r} 不是 {known} 之一：按班级的语言处理",
        )
    others = [at for at in range(min(len(heading), len(row))) if at not in columns.values()]
    more = {heading[at]: row[at] for at in others if heading[at] and row[at]}
    id, name = _checked_id(given["id"]), _checked_name(given["name"], given["last"], given["first"])
    return Student(id, name, _LANGUAGES.get(language.casefold()), given["email"], more), odd


def _checked_name(name: str, last: str, first: str) -> str:
    joined = last + first if re.search("[一-鿿]", last + first) else f"{first} {last}".strip()
    if not (name or joined):
        raise Problem(en="there is no name", zh="没有姓名")
    return (name or joined)[:200]


def _checked_id(text: str) -> str:
    if not text:
        raise Problem(en="there is no id", zh="没有学号")
    if _ROUNDED.fullmatch(text):
        raise Problem(
            en=f"the id {text} has been rounded by a spreadsheet: make the column text, and enter it again",
            zh=f"学号 {text} 被电子表格改成了科学计数法：请把这一列设为“文本”，再重新填写",
        )
    if not _ID.fullmatch(text) or _RESERVED.fullmatch(text):
        raise Problem(
            en=f"the id {text!r} cannot be a folder's name: letters, digits, . _ - and @, at most 64",
            zh=f"学号 {text!r} 不能用作文件夹名：只能有字母、数字和 . _ - @，最多 64 个",
        )
    return text
