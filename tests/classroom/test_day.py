"""The teacher's day, by the three commands that the teacher's page shows; and the students' between them."""

import json
import re
from pathlib import Path

import pytest

from labkit_cli import main

ROOT = Path(__file__).parents[2]
ROSTER = "学号,姓名,语言\n20231001,张三,\n20231002,李四,\nada,Ada Lovelace,en\ngrace,Grace Hopper,en\n"
RIGHT = """def split(rows, gpus):
    size = -(-rows // gpus)
    full, rest = divmod(rows, size)
    return [size] * full + [rest] * (rest > 0)
"""
ANSWERS = {
    "20231001": RIGHT,
    "20231002": RIGHT.replace("-(-rows // gpus)", "max(1, rows // gpus)"),
    "ada": RIGHT,
}


def commands(language):
    page = {"en": "teaching.md", "zh": "teaching.zh.md"}[language]
    text = (ROOT / "docs" / page).read_text("utf-8").partition("```\n")[2].partition("```")[0]
    found = re.findall(r"^labkit (assignment release .*|grade .*|assignment export .*)$", text, re.MULTILINE)
    assert len(found) == 3
    return [line.split() for line in found]


@pytest.mark.parametrize("language", ["zh"])
def test_the_three_commands(language, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    release, grade, export = commands(language)
    Path("roster.csv").write_bytes(ROSTER.encode("gbk"))
    assert main([*release, "--lang", language]) == 0
    folder = Path("primitives")
    for student, answer in ANSWERS.items():
        notebook = folder / "handout" / student / "primitives.ipynb"
        found = json.loads(notebook.read_text("utf-8"))
        for cell in found["cells"]:
            if cell["id"] == "split-answer":
                cell["source"] = answer
        mine = tmp_path / f"{student}.ipynb"
        mine.write_text(json.dumps(found), "utf-8")
        assert main(["submit", str(mine), "--to", str(folder / "submitted")]) == 0
    assert main([*grade, "--lang", language, "--trust-students"]) == 0
    assert main([*export, "--lang", language]) == 0
    table = (folder / "teacher/export/marks.csv").read_text("utf-8-sig").splitlines()
    split = {row.split(",")[0]: row.split(",")[2] for row in table[1:]}
    assert (split["20231001"], split["ada"], split["grace"]) == ("4", "4", "")
    assert float(split["20231002"]) < 4
    pages = {path.stem: path.read_text("utf-8") for path in (folder / "feedback").iterdir()}
    assert set(pages) == set(ANSWERS)
    assert "未作答" in pages["20231002"]
    assert "Not answered" in pages["ada"]
    assert "4 名学生中批改了 3 名" in (folder / "teacher/overview.html").read_text("utf-8")

    # The same command again grades nobody anew, and loses nothing.
    lines = (folder / "teacher/marks.jsonl").read_bytes()
    capsys.readouterr()
    assert main([*grade, "--lang", language, "--trust-students"]) == 0
    assert (folder / "teacher/marks.jsonl").read_bytes() == lines
