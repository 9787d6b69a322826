"""Progress is the learner's: kept over restarts, never lost on bad input, the same in every stored notebook."""

import json
import os
import re
import stat
import subprocess
import sys
import threading

import filelock
import pytest

import labkit
from labkit_course import Progress, begin, check, progress
from labkit_course.content import module
from labkit_course.exercise import ids


@pytest.fixture
def file(tmp_path, monkeypatch):
    found = tmp_path / "deep" / "progress.json"
    monkeypatch.setenv("LABKIT_PROGRESS", str(found))
    return found


@pytest.fixture(autouse=True)
def _nothing_left_to_write(monkeypatch):
    monkeypatch.setattr(progress, "_unwritten", set())
    monkeypatch.setattr(progress, "_aside", None)


def test_answers_are_noted_and_which_were_right_at_the_first_try(file):
    check("03.idle", None)
    check("03.idle", "three")  # no answer at all: a slip of the pen
    assert not file.exists()
    check("03.idle", 0)
    check("03.idle", 3)
    check("03.idle", 3)
    check("02.inside", 15)
    check("02.inside", 30)  # tried out afterwards: the first answer was right
    assert json.loads(file.read_text("utf-8")) == {"done": ["02.inside", "03.idle"], "missed": ["03.idle"]}
    assert progress.answered_exercises() == {"02.inside", "03.idle"}
    assert progress.at_first_try() == {"02.inside"}
    assert sorted(os.listdir(file.parent)) == [".progress.json.lock", "progress.json"]


def test_another_process_sees_it(file):
    check("03.idle", 3)
    code = "from labkit_course import progress; print(progress.answered_exercises())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'03.idle'}\n"


def test_without_the_variable_it_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_PROGRESS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    check("03.idle", 3)
    assert progress.file() == tmp_path / ".labkit" / "progress.json"
    assert progress.answered_exercises() == {"03.idle"}


def test_what_else_stands_in_the_file_stays(file):
    file.parent.mkdir()
    file.write_text('{"name": "李雷", "done": ["09.future"]}', "utf-8")
    check("03.idle", 3)
    assert json.loads(file.read_text("utf-8")) == {"name": "李雷", "done": ["03.idle", "09.future"]}
    assert "李雷" in file.read_text("utf-8")


def test_what_an_editor_or_an_escape_put_there_is_understood(file):
    file.parent.mkdir()
    file.write_text('{"half": "\\ud83d", "done": ["09.future"]}', "utf-8-sig")
    check("03.idle", 3)
    assert json.loads(file.read_text("utf-8")) == {"half": "\ud83d", "done": ["03.idle", "09.future"]}


NESTED = "[" * 100_000 + "]" * 100_000
DEEP = '{"x": ' + "[" * 5_000 + "]" * 5_000 + "}"  # since Python 3.12 it is read, by C, and cannot be written


@pytest.mark.parametrize(
    "bad", ["not json", "[]", '{"done": "03.idle"}', '{"done": [1]}', "", "\x00", NESTED, DEEP]
)
def test_a_file_that_cannot_be_understood_is_kept(file, bad):
    file.parent.mkdir()
    for count in (1, 2):
        file.write_text(bad, "utf-8")
        assert progress.answered_exercises() == set()
        assert file.read_text("utf-8") == bad  # looking changes nothing
        check("03.idle", 3)
        assert progress.answered_exercises() == {"03.idle"}
        aside = file.with_name(f"progress.unreadable-{count}.json")
        assert aside.read_text("utf-8") == bad
        assert aside.name in repr(Progress())


def test_the_lesson_that_has_begun_says_how_it_went_in_one_line(file, monkeypatch):
    monkeypatch.setattr("labkit_course.lesson._begun", None)
    asked = sum(name.startswith("03.") for name in ids())
    assert "Lesson" not in repr(Progress())
    begin("03_split", num_gpus=2, batch_size=30, data_size=100, language="en")
    board = Progress()
    board._repr_mimebundle_()
    assert f"Lesson 03: 0 of {asked} questions answered, 0 at the first try" in board._widget.value
    check("03.idle", 0)
    check("03.idle", 3)
    check("03.order", 2)
    check("04.undo", 2)
    assert f"Lesson 03: 2 of {asked} questions answered, 1 at the first try" in board._widget.value
    assert repr(board).startswith(f"Lesson 03: 2 of {asked} questions answered, 1 at the first try\n")
    assert "03" not in board._repr_mimebundle_()["text/plain"], "what is stored is the same for everybody"
    labkit.set_language("zh")
    assert f"第 03 课：共 {asked} 题，答对 2 题，其中 1 题一次答对" in repr(Progress())
    last = board._widget.value.split("<tr>")[-1]
    assert f">3/{len(ids())}<" in last
    labkit.set_language("en")
    assert "models? · 0 of 100 points" in board._widget.value
    begin("09_broken", num_gpus=2, batch_size=30, data_size=100, language="en")
    assert repr(Progress()).splitlines()[0].endswith("at the first try; 0 of 100 points")
    assert ">2<" in last
    monkeypatch.setenv("LABKIT_PROGRESS", "off")
    assert "第 03 课：" not in repr(Progress()), "nobody keeps count"


def test_a_place_that_cannot_be_written_costs_the_note_not_the_lesson(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))  # a folder, not a file
    assert check("03.idle", 3).right
    assert "Progress could not be saved" in repr(Progress())
    labkit.set_language("zh")
    assert "进度没能保存" in repr(Progress())


def test_a_note_that_cannot_be_written_is_written_later(file, monkeypatch):
    check("03.idle", 3)
    before = file.read_bytes()

    def fails(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fails)
        assert check("02.inside", 15).right
        assert "Progress could not be saved (the disk is full)." in repr(Progress())
        assert progress.answered_exercises() == {"03.idle", "02.inside"}, (
            "the learner has answered it, whatever the disk says"
        )
        labkit.set_language("zh")
        assert "进度没能保存（磁盘已满）。" in repr(Progress())
    assert file.read_bytes() == before
    assert "磁盘已满" not in repr(Progress()), "there is room again: it is written, and the complaint gone"
    assert json.loads(file.read_text("utf-8"))["done"] == ["02.inside", "03.idle"]


def test_the_complaint_about_a_file_that_was_moved_goes_with_that_file(file):
    file.parent.mkdir()
    file.write_text("not json")
    check("03.idle", 3)
    assert "could not be understood" in repr(Progress())
    file.with_name("progress.unreadable-1.json").unlink()
    assert "could not be understood" not in repr(Progress())


def place(kind, file):
    """Something that no progress can be kept in, where progress is kept."""
    file.parent.mkdir()
    if kind == "folder":
        file.mkdir()
    elif kind == "circle":
        file.symlink_to(file)
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/null")
    else:
        file.parent.rmdir()
        file.parent.write_text("a file where the folder should be")


@pytest.mark.skipif(sys.platform == "win32", reason="no such files there")
@pytest.mark.parametrize(
    ("kind", "word"),
    [("folder", "it is a folder"), ("circle", "its symbolic links form a loop"), ("fifo", "not a regular file"),
     ("device", "not a regular file"), ("parent", "a folder in the path is a file")],
)  # fmt: skip
def test_what_is_no_file_is_left_alone(file, kind, word):
    place(kind, file)
    assert check("03.idle", 3).right
    assert f"Progress could not be saved ({word})." in repr(Progress())
    assert not stat.S_ISREG(os.lstat(file).st_mode) if kind != "parent" else file.parent.is_file()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_user_without_a_home_is_told_and_the_answer_is_right(monkeypatch):
    monkeypatch.delenv("LABKIT_PROGRESS")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(
        os.path, "expanduser", lambda path: path
    )  # as for a user that the system does not know
    assert check("03.idle", 3).right
    assert "the home folder is unknown: name a file in LABKIT_PROGRESS" in repr(Progress())
    labkit.set_language("zh")
    assert "不知道主目录在哪里" in repr(Progress())
    monkeypatch.setenv("LABKIT_PROGRESS", "~nobody-of-this-name/progress.json")
    assert check("02.inside", 15).right


def test_whatever_goes_wrong_is_no_error_of_the_cell(file, monkeypatch):
    def fails(*args):
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(progress, "write_whole", fails)
    gone = Progress()
    gone.refresh = fails
    progress.watchers.add(gone)
    assert check("03.idle", 3).right
    assert "(ZeroDivisionError: odd)" in repr(Progress())


def test_a_note_waits_for_another_process_and_says_so_when_it_waits_in_vain(file, monkeypatch):
    check("03.idle", 3)
    monkeypatch.setattr(progress, "_PATIENCE", 0)
    with filelock.FileLock(file.with_name(".progress.json.lock")):
        assert check("02.inside", 15).right
        assert "another program is using it" in repr(Progress())
    assert "could not" not in repr(Progress())


def test_nobody_else_may_write_between_reading_and_writing(file, monkeypatch):
    held = []

    def asking(called):
        def ask(*args):
            with pytest.raises(filelock.Timeout):
                filelock.FileLock(file.with_name(".progress.json.lock"), timeout=0).acquire()
            held.append(called.__name__)
            return called(*args)

        return ask

    with monkeypatch.context() as watched:
        watched.setattr(progress, "_load", asking(progress._load))
        watched.setattr(progress, "write_whole", asking(progress.write_whole))
        progress.note("03.idle")
    assert held == ["_load", "write_whole"]
    assert progress.answered_exercises() == {"03.idle"}


def test_threads_do_not_lose_each_others_notes(file):
    answers = {
        "03.idle": 3, "02.inside": 15, "02.lines": 8, "01.dropped": 10, "03.largest": 49, "00.bytes": 20000,
    }  # fmt: skip
    threads = [threading.Thread(target=check, args=item) for item in answers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.answered_exercises() == set(answers)


def test_the_board_follows_the_answers_and_keeps_its_language(file):
    labkit.set_language("zh")
    board = Progress()
    board._repr_mimebundle_()
    labkit.set_language("en")
    asked = sum(name.startswith("03.") for name in ids())
    assert marks(board) == ["○" * asked]
    check("03.idle", 0)
    check("03.idle", 3)
    check("03.last", 5)
    assert marks(board)[0] == "●" + "◐" + "○" * (asked - 2), "it fills from the left"
    # Of lesson 03, of no other: two answered, one of them at the first try.
    assert re.findall(rf">([1-9]/{asked})</td><td[^>]*>(\d)<", board._widget.value) == [
        ("2/" + str(asked), "1")
    ]
    assert "03 · 哪些行归谁？" in board._widget.value
    assert str(file) in board._widget.value
    assert labkit.get_language() == "en"


def test_repairs_are_folded_in_lessons_that_have_none(file, monkeypatch):
    monkeypatch.setattr(module("repairs.shown"), "table", lambda: "ten repairs")
    for lesson, folded in (("03_split", True), ("09_broken", False)):
        begin(lesson, num_gpus=2, batch_size=30, data_size=100, language="en")
        board = Progress()
        board._repr_mimebundle_()
        inside, _, outside = board._widget.value.rpartition("</details>")
        assert ("ten repairs" in inside, "ten repairs" in outside) == (folded, not folded)


def marks(board):
    """The signs of lesson 03."""
    return [row.replace(" ", "") for row in re.findall(r'title="03[^>]*>([^<]*)<', board._widget.value)]


def test_what_a_notebook_stores_does_not_depend_on_progress(file):
    def stored():
        bundle = Progress()._repr_mimebundle_()
        bundle.pop("application/vnd.jupyter.widget-view+json")
        return bundle

    before = stored()
    check("03.idle", 3)
    assert stored() == before == {"text/plain": "Your own progress appears here while the notebook runs."}


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", "off")
    check("03.idle", 3)
    assert progress.answered_exercises() == set()
    assert "not kept" in repr(Progress())
