"""Class mode: no solution before the teacher's word, whatever the computer's clock says."""

import os

import pytest

from labkit.base.language import using
from labkit.course import answers, check, class_mode, open_solutions, reveal
from labkit.course.exercise import find, ids


@pytest.fixture(autouse=True)
def nothing_opened(monkeypatch, tmp_path):
    monkeypatch.setattr(class_mode, "_opened", set())
    monkeypatch.delenv(class_mode.VARIABLE, raising=False)
    monkeypatch.setenv("LABKIT_PROGRESS", "off")
    (tmp_path / "lessons" / "zh").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "lessons" / "zh")
    return tmp_path


@pytest.fixture
def shut(nothing_opened):
    file = nothing_opened / "lessons" / class_mode.FILE
    file.write_text(class_mode.lock("9f3a-11c2", "2026-12-01 23:59"), "utf-8")
    return file


def shown():
    """All that the learner can see of a wrong, a missing and a revealed answer."""
    told = [check("04.gradient", 4), check("04.gradient", None)]
    return "".join(verdict._repr_html_() + repr(verdict) for verdict in told) + reveal("04.gradient").text


def test_without_a_class_solutions_fold_out():
    assert find("04.gradient").solution() in reveal("04.gradient").text


def test_in_class_none_is_shown_until_the_word_is_given(shut, monkeypatch):
    solution = find("04.gradient").solution()
    monkeypatch.setattr("time.time", lambda: 1e11)  # the year 5138
    assert answers.as_html(solution) not in shown()
    assert solution not in shown()
    assert "closed for this class (deadline: 2026-12-01 23:59)" in shown()
    with using("zh"):
        assert "这个班的答案还没有开放（截止时间：2026-12-01 23:59）" in shown()
    with pytest.raises(ValueError, match="word must be the one"):
        open_solutions("guess")
    assert solution not in shown()
    open_solutions(" 9F3A-11c2 ")
    assert solution in shown()


def test_what_is_right_is_said_to_be_and_why(shut):
    exercise = next(name for name in ids() if find(name).choices())
    found = find(exercise)
    right = next(number for number, answer in enumerate(found.answers, 1) if answer.hint is None)
    assert found.solution() in check(exercise, right).text


def test_a_variable_names_the_file_and_a_broken_one_stays_shut(shut, monkeypatch, nothing_opened):
    other = nothing_opened / "room.json"
    shut.rename(other)
    assert class_mode.closed() == ""
    monkeypatch.setitem(os.environ, class_mode.VARIABLE, str(other))
    assert "closed for this class" in class_mode.closed()
    other.write_text("{")
    assert "closed for this class" in class_mode.closed()
    for word in ("", "9f3a-11c2"):
        with pytest.raises(ValueError, match="word must be"):
            open_solutions(word)


def test_release_makes_the_file_and_its_word_opens_it(tmp_path, monkeypatch):
    from labkit.classroom.assignment import load
    from labkit.classroom.handout.folder import moment
    from labkit.classroom.handout.release import release
    from labkit.classroom.handout.roster import Student

    made = release(load("primitives"), tmp_path / "c", [Student("a", "A")], "en", moment("2026-12-01")).folder
    text = (made.handout / class_mode.FILE).read_text("utf-8")
    assert made.word not in text
    monkeypatch.chdir(made.handout)
    assert "2026-12-01 23:59" in class_mode.closed()
    open_solutions(made.word)
    assert class_mode.closed() == ""
    assert made.word in (made.teacher / "class.json").read_text("utf-8")
