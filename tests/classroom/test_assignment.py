"""An assignment's folder, read: its notebook in both languages, its stubs and solutions, its rubric."""

import shutil

import pytest

from labkit.base.language import using
from labkit_classroom.assignment import load
from labkit_classroom.checking import begin, check
from labkit_classroom.folders import names
from labkit_classroom.messages import Problem
from labkit_classroom.source import is_unanswered


@pytest.mark.parametrize("name", names())
def test_the_students_notebook_has_no_solution(name):
    assignment = load(name)
    numbers = assignment.numbers(None)
    for language in ("en", "zh"):
        sources = [cell.source for cell in assignment.cells(language, numbers)]
        for question in assignment.questions:
            assert question.stub(numbers) in sources
            assert question.solution(numbers) not in sources
            assert is_unanswered(f"\n{question.stub(numbers)}\n# nothing yet", question.stub(numbers))
            assert not is_unanswered(question.solution(numbers), question.stub(numbers))


@pytest.mark.parametrize(("before", "after", "english", "chinese"), [
    ("split-check code check", "split-check code checked",
     "cell split-check: its tag is 'checked', which must be one of given, answer, check",
     "单元格 split-check：标签是 'checked'，必须是 given、answer、check 之一"),
    ("## 1 · Split", "Split",
     "cell split: the text cell above it must begin with a heading",
     "单元格 split：上面的文字单元格必须以标题行开头"),
    ("scatter code answer", "gather code answer",
     'cell gather: judges.py has no part for it, @part("gather", points, …)',
     '单元格 gather：judges.py 里没有它的评分项 @part("gather", 分数, …)'),
    ("%% scatter code answer", "%% scatter code",
     "judges.py: part arrives is of a question 'scatter' that has no answer cell",
     "judges.py：评分项 arrives 属于题目 'scatter'，但没有这道题的答题单元格"),
    ("%% title\n# A small assignment\n%% zh\n# 一份小作业\n", "", "it begins with a text cell, the title",
     "开头应是一个文字单元格（标题）"),
    ("%% title", "text\n%% title", "line 1: text before the first cell", "第 1 行：第一个单元格之前有文字"),
    ("%% given code given", "%% given code given too",
     "line 6: not a cell's first line: '%% given code given too'", "第 6 行：不是单元格的首行"),
    ("%% given code", "%% split code", "line 16: there are two cells 'split'",
     "第 16 行：有两个单元格都叫 'split'"),
    ("import torch", "%% zh", "line 7: '%% zh' stands once, inside a text cell",
     "第 7 行：'%% zh' 在文字单元格里写一次"),
    ("%% zh\n## 2 · 分发\n", "",
     "cell scatter-text: no Chinese; it follows a line '%% zh'",
     "单元格 scatter-text：没有中文；中文写在 '%% zh' 这一行之后"),
])  # fmt: skip
def test_what_is_wrong_with_an_assignment_is_told_with_its_file_and_cell(
    small, tmp_path, before, after, english, chinese
):
    folder = tmp_path / "mine"
    shutil.copytree(small.folder, folder)
    text = (folder / "assignment.txt").read_text("utf-8")
    assert before in text
    (folder / "assignment.txt").write_text(text.replace(before, after, 1), "utf-8")
    for language, words in (("en", english), ("zh", chinese)):
        with using(language), pytest.raises(Problem) as caught:
            load(folder)
        with using(language):
            assert str(caught.value).startswith(f"{folder / 'assignment.txt'}: {words}")


def test_an_assignment_that_is_not_there_is_told_with_those_that_are(small, tmp_path):
    with pytest.raises(Problem, match="there is no assignment 'none': it is one of .*primitives.*, or"):
        load("none")
    for name in ("assignment.txt", "judges.py"):
        folder = tmp_path / name.partition(".")[0]
        shutil.copytree(small.folder, folder)
        (folder / name).unlink()
        with pytest.raises(Problem, match=f"^{folder}: {name} is missing$"):
            load(folder)


def test_a_check_is_begun_by_its_name_and_given_what_the_cell_defines():
    with pytest.raises(Problem, match="this labkit has no assignment 'newer'"):
        begin("newer", language="en")
    begin("primitives", language="en")
    with pytest.raises(TypeError, match=r'^write check\("primitives.split", split\)$'):
        check("primitives.split")


def test_no_text_at_all_counts_as_unanswered():
    assert is_unanswered(None, "x = 1")
    assert not is_unanswered("x = (", "x = 1"), "what is no Python is no stub"
