"""Progress is the learner's: kept over restarts, never lost on bad input, the same in every stored notebook."""

import json
import os
import re
import subprocess
import sys
import threading

import pytest

import labkit
from labkit.course import Progress, check, progress


@pytest.fixture
def file(tmp_path, monkeypatch):
    found = tmp_path / "deep" / "progress.json"
    monkeypatch.setenv("LABKIT_PROGRESS", str(found))
    monkeypatch.setattr(progress, "trouble", lambda: "")
    return found


def test_only_right_answers_are_noted(file):
    check("03.idle", None)
    check("03.idle", 0)
    assert not file.exists()
    check("03.idle", 3)
    check("03.idle", 3)
    check("02.inside", 15)
    assert json.loads(file.read_text("utf-8")) == {"done": ["02.inside", "03.idle"]}
    assert os.listdir(file.parent) == ["progress.json"]


def test_another_process_sees_it(file):
    check("03.idle", 3)
    code = "from labkit.course import progress; print(progress.done())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'03.idle'}\n"


def test_without_the_variable_it_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_PROGRESS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    check("03.idle", 3)
    assert progress.file() == tmp_path / ".labkit" / "progress.json"
    assert progress.done() == {"03.idle"}


def test_what_else_stands_in_the_file_stays(file):
    file.parent.mkdir()
    file.write_text('{"name": "李雷", "done": ["09.future"]}', "utf-8")
    check("03.idle", 3)
    assert json.loads(file.read_text("utf-8")) == {"name": "李雷", "done": ["03.idle", "09.future"]}
    assert "李雷" in file.read_text("utf-8")


@pytest.mark.parametrize("bad", ["not json", "[]", '{"done": "03.idle"}', '{"done": [1]}', "", "\x00"])
def test_a_file_that_cannot_be_understood_is_kept(file, bad):
    file.parent.mkdir()
    for count in (1, 2):
        file.write_text(bad, "utf-8")
        assert progress.done() == set()
        assert file.read_text("utf-8") == bad  # looking changes nothing
        check("03.idle", 3)
        assert progress.done() == {"03.idle"}
        aside = file.with_name(f"progress.unreadable-{count}.json")
        assert aside.read_text("utf-8") == bad
        assert aside.name in repr(Progress())


def test_a_place_that_cannot_be_written_costs_the_note_not_the_lesson(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "trouble", lambda: "")
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))  # a folder, not a file
    assert check("03.idle", 3).right
    assert "Progress could not be saved" in repr(Progress())
    labkit.set_language("zh")
    assert "进度没能保存" in repr(Progress())


def test_a_write_that_fails_leaves_the_old_file_whole(file, monkeypatch):
    check("03.idle", 3)
    before = file.read_bytes()

    def fails(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(progress.os, "replace", fails)
        assert check("02.inside", 15).right
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["progress.json"]
    assert "No space left on device" in repr(Progress())
    check("02.inside", 15)
    assert "No space left on device" not in repr(Progress()), "it is kept now"


def test_threads_do_not_lose_each_others_notes(file):
    answers = {
        "03.idle": 3,
        "02.inside": 15,
        "02.lines": 8,
        "01.dropped": 10,
        "03.which": 4,
        "00.bytes": 20000,
    }
    threads = [threading.Thread(target=check, args=item) for item in answers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.done() == set(answers)


def test_the_board_follows_the_answers_and_keeps_its_language(file):
    labkit.set_language("zh")
    board = Progress()
    board._repr_mimebundle_()
    labkit.set_language("en")
    assert "●" not in board._widget.value
    check("03.idle", 3)
    assert board._widget.value.count("●") == 1
    assert re.findall(r">([1-9]/\d)<", board._widget.value) == ["1/3"]  # of lesson 03, of no other
    assert "03 · 哪些行归谁？" in board._widget.value
    assert str(file) in board._widget.value
    assert labkit.get_language() == "en"


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
    assert progress.done() == set()
    assert "not kept" in repr(Progress())
