"""A file is the old one or the new one, whatever fails while it is written, and what cannot be replaced is not."""

import builtins
import errno
import os
import shutil
import stat

import pytest

from labkit.base.files import real_file, reason, write_whole
from labkit.base.language import using


def names(folder):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("before", [None, "old"])
def test_a_file_is_written(tmp_path, before):
    file = tmp_path / "report.html"
    if before:
        file.write_text(before)
    write_whole(file, "新的\n")
    assert file.read_bytes() == "新的\n".encode()
    assert names(tmp_path) == ["report.html"]


class Full:
    """A stream to a disk that takes three bytes and no more."""

    def __init__(self, descriptor, mode):
        self.descriptor = descriptor

    def __enter__(self):
        return self

    def __exit__(self, *error):
        os.close(self.descriptor)

    def write(self, content):
        os.write(self.descriptor, content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("step", ["open", "write", "fsync", "copymode", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_wherever_it_fails_the_file_is_as_it_was_and_nothing_lies_beside_it(
    tmp_path, monkeypatch, before, step, error
):
    file = tmp_path / "report.html"
    if before:
        file.write_text(before)

    def fails(*args):
        raise error

    with monkeypatch.context() as broken:
        if step == "write":
            broken.setattr(builtins, "open", Full)
        else:
            broken.setattr(shutil if step == "copymode" else os, step, fails)
        with pytest.raises((OSError, KeyboardInterrupt)) as raised:
            write_whole(file, "new text")
    if raised.type is OSError:
        assert raised.value.filename == str(file)
    assert names(tmp_path) == ["report.html"] * bool(before)
    if before:
        assert file.read_text() == before


def test_text_that_cannot_be_encoded_touches_nothing(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a", "\ud800")
    assert (names(tmp_path), (tmp_path / "a").read_text()) == (["a"], "old")


@pytest.mark.skipif(os.name == "nt", reason="rights are otherwise there")
def test_rights_are_kept_and_those_of_a_new_file_are_as_of_any_new_file(tmp_path):
    (tmp_path / "mine").touch()
    os.chmod(tmp_path / "mine", 0o640)
    write_whole(tmp_path / "mine", "new")
    write_whole(tmp_path / "new", "new")
    (tmp_path / "other").touch()
    mode = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in names(tmp_path)}
    assert mode["mine"] == 0o640
    assert mode["new"] == mode["other"]


def test_a_link_stays_one_and_what_it_names_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "real")
    for text in ("one", "two"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "real").read_text() == text
    assert names(tmp_path / "there") == ["real"]


def test_a_file_without_the_right_to_write_it_is_not_replaced(tmp_path, monkeypatch):
    file = tmp_path / "kept"
    file.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # to root all is allowed
    with pytest.raises(PermissionError):
        write_whole(file, "new")
    assert file.read_text() == "old"


def test_what_is_no_file_is_not_replaced(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "folder").mkdir()
    for name, word in (("circle", "loop"), ("folder", "folder"), (os.devnull, "regular")):
        with pytest.raises(OSError) as refused:  # noqa: PT011 (its word is asked for)
            write_whole(tmp_path / name, "new")
        assert word in reason(refused.value)
    assert names(tmp_path) == ["circle", "folder"]
    assert real_file(tmp_path / "none yet") == tmp_path.resolve() / "none yet"


def test_what_a_killed_process_left_is_taken_away_by_the_next_that_writes_the_file(tmp_path):
    def left(name, old):
        path = tmp_path / name
        path.write_text("hal")
        if old:
            os.utime(path, (0, 0))

    left(".a[1].json.0123abcd.new", old=True)
    left(".a[1].json.4567abcd.new", old=False)  # somebody may be at it
    left(".b.json.0123abcd.new", old=True)  # of another file
    write_whole(tmp_path / "a[1].json", "{}")
    assert names(tmp_path) == [".a[1].json.4567abcd.new", ".b.json.0123abcd.new", "a[1].json"]


def test_the_reason_is_said_in_the_language_in_use():
    assert reason(OSError(errno.ENOSPC, "No space left on device")) == "the disk is full"
    with using("zh"):
        assert reason(PermissionError(errno.EACCES, "Permission denied")) == "没有权限"
        assert reason(TimeoutError()) == "另一个程序正在使用它"
    assert reason(OSError(errno.EMFILE, "Too many open files")) == "Too many open files"
    assert reason(OSError("words")) == "words"
