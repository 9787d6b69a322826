"""What comes back: whose it is, which of several counts, and what is nobody's."""

import io
import json
import os
import sys
import zipfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from labkit_classroom.assignment import EditionCell, notebook
from labkit_classroom.handout.folder import ClassFolder
from labkit_classroom.handout.roster import Student
from labkit_classroom.intake import collecting
from labkit_classroom.intake.collecting import collect, group_files

CELLS = [
    EditionCell("intro", "text", "# A small assignment"),
    EditionCell("split", "answer", "def split(rows, gpus):\n    ...", "split"),
]
ROSTER = [
    Student("20231001", "张三"), Student("20231002", "张三丰"), Student("20231003", "王伟"),
    Student("20231004", "王伟"), Student("ada", "Ada Lovelace"),
]  # fmt: skip
DEADLINE = datetime(2026, 12, 1, 15, 59, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path):
    students = {student.id: student for student in ROSTER}
    made = ClassFolder(tmp_path / "small", "small", bytes(32), students, "zh", DEADLINE)
    made.submitted.mkdir(parents=True)
    return made


def edition(folder, whose, tag=None, **told):
    found = json.loads(notebook("small", CELLS, whose, tag or folder.tag(whose)))
    found["metadata"]["labkit"] |= told
    return json.dumps(found)


def put(folder, name, text, when=datetime(2026, 11, 30, tzinfo=UTC)):
    path = folder.submitted / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    os.utime(path, (when.timestamp(), when.timestamp()))


def nameless(text):
    found = json.loads(text)
    del found["metadata"]["labkit"]
    found["cells"][1]["source"].pop(0)
    return json.dumps(found)


def files(collection):
    return {student: found.name for student, found in collection.submissions.items()}


def kinds(collection, student):
    return [note.kind for note in collection.submissions[student].notes]


def strange(collection):
    return {name: note.kind for name, note in collection.rejected}


@pytest.mark.parametrize("name", [
    "x.ipynb", "张三_12345_assignsubmission_file_/small.ipynb", "zhangsan_331_20231001_small-2.ipynb",
    "计科1班/20231001-张三-实验一.ipynb", "20231001/small.py.ipynb",
])  # fmt: skip
def test_an_edition_is_whose_its_tag_says_under_any_name(folder, name):
    put(folder, name, edition(folder, "20231001"))
    found = collect(folder)
    assert files(found) == {"20231001": name}
    assert found.missing == ["20231002", "20231003", "20231004", "ada"]
    assert (found.rejected, kinds(found, "20231001")) == ([], [])


@pytest.mark.parametrize(("name", "owner"), [
    ("20231002.ipynb", "20231002"),
    ("作业 张三丰.ipynb", "20231002"),  # 张三 is in it, too
    ("Ada Lovelace_1.ipynb", "ada"), ("20231003-王伟.ipynb", "20231003"),
    ("王伟.ipynb", None),  # two students have this name
    ("220231002.ipynb", None), ("canada.ipynb", None),
    ("20231001/20231002.ipynb", "20231002"),  # the innermost name counts
    ("20231001-20231002.ipynb", None),
])  # fmt: skip
def test_without_a_tag_the_names_say_whose_it_is_if_they_can(folder, name, owner):
    put(folder, name, nameless(edition(folder, "ada")))
    found = collect(folder)
    assert files(found) == ({owner: name} if owner else {})
    if owner:
        assert kinds(found, owner) == ["untagged"]
    else:
        assert strange(found) == {name: "nobody"}


def test_another_students_file_is_graded_for_nobody(folder):
    put(folder, "20231001.ipynb", edition(folder, "20231002"))
    put(folder, "20231002.ipynb", edition(folder, "20231002"))
    put(folder, "ada.ipynb", edition(folder, "ada", tag=folder.tag("20231001")))  # an id changed by hand
    both = json.loads(edition(folder, "20231003"))
    both["cells"] += json.loads(edition(folder, "20231004"))["cells"]
    put(folder, "both.ipynb", json.dumps(both))
    found = collect(folder)
    assert files(found) == {"20231002": "20231002.ipynb"}
    assert strange(found) == {"20231001.ipynb": "another", "ada.ipynb": "forged", "both.ipynb": "another"}
    assert set(found.unreadable) == {"20231001", "ada"}
    assert found.missing == ["20231003", "20231004"]


def test_an_id_changed_in_the_metadata_alone_changes_nothing(folder):
    put(folder, "x.ipynb", edition(folder, "ada", student="20231001"))
    assert files(collect(folder)) == {"ada": "x.ipynb"}


def test_of_several_the_newest_is_graded_and_the_others_are_told(folder):
    early, late = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 3, tzinfo=UTC)
    put(folder, "b/x.ipynb", edition(folder, "ada"), early)
    put(folder, "a/x.ipynb", edition(folder, "ada"), late)
    found = collect(folder)
    assert files(found) == {"ada": "a/x.ipynb"}
    assert kinds(found, "ada") == ["resubmitted", "late"]
    assert "an earlier one was in time" in found.submissions["ada"].notes[0].en
    put(folder, "x (10).ipynb", edition(folder, "20231001"))
    put(folder, "x (9).ipynb", edition(folder, "20231001"))
    assert files(collect(folder))["20231001"] == "x (10).ipynb"


@pytest.mark.parametrize(("stamp", "late"), [
    ("2026-12-01T23:59:00+08:00", False), ("2026-12-02T00:01:00+08:00", True),
    ("2026-12-02T00:01:00", False),  # without a zone it says nothing: the file's time counts
    ("soon", False), (3, False),
])  # fmt: skip
def test_the_stamp_of_submit_says_when(folder, stamp, late):
    put(folder, "x.ipynb", edition(folder, "ada", submitted=stamp))
    assert collect(folder).submissions["ada"].days_late == late
    assert kinds(collect(folder), "ada") == ["late"] * late


def test_archives_are_read_and_links_are_not(folder, tmp_path):
    with zipfile.ZipFile(folder.submitted / "all.zip", "w") as archive:
        archive.writestr("王伟_1/20231004.ipynb", edition(folder, "20231004"))
        archive.writestr("__MACOSX/._x.ipynb", "x")
        archive.writestr("20231001.docx", "PK\x03\x04")
        archive.writestr("../../ada.ipynb", edition(folder, "ada"))
    (folder.submitted / "broken.zip").write_bytes(b"PK\x03\x04 no archive")
    secret = tmp_path / "secret.ipynb"
    secret.write_text(edition(folder, "20231003"), "utf-8")
    (folder.submitted / "20231003.ipynb").symlink_to(secret)
    (folder.submitted / "20231003").symlink_to(tmp_path)
    os.mkfifo(folder.submitted / "pipe.ipynb")
    (folder.submitted / ".DS_Store").write_text("x")
    found = collect(folder)
    assert files(found) == {"20231004": "all.zip/王伟_1/20231004.ipynb", "ada": "all.zip/../../ada.ipynb"}
    assert strange(found) == {
        "all.zip/20231001.docx": "wrong-file", "broken.zip": "unreadable", "20231003.ipynb": "link",
        "20231003": "link", "pipe.ipynb": "link",
    }  # fmt: skip


class InGbk(zipfile.ZipInfo):
    """A member whose name is written as Windows in China does, without saying so."""

    def _encodeFilenameFlags(self):
        return self.filename.encode("gbk"), self.flag_bits


def test_a_name_in_gbk_within_an_archive_is_read(folder):
    with zipfile.ZipFile(folder.submitted / "all.zip", "w") as archive:
        archive.writestr(InGbk("张三丰.ipynb"), nameless(edition(folder, "ada")))
    assert files(collect(folder)) == {"20231002": "all.zip/张三丰.ipynb"}


def test_other_assignments_and_other_files_are_told(folder):
    other = edition(folder, "ada").replace("small", "large")
    put(folder, "ada.ipynb", other)
    put(folder, "ada.pdf", "%PDF-1.4")
    put(folder, "notes.txt", "what I wanted to say")
    found = collect(folder)
    assert strange(found) == {
        "ada.ipynb": "other-assignment", "ada.pdf": "wrong-file", "notes.txt": "wrong-file",
    }  # fmt: skip
    assert (list(found.unreadable), found.missing) == (["ada"], [student.id for student in ROSTER[:4]])


def test_a_stamp_that_is_still_to_come_is_told_and_not_believed(folder):
    put(folder, "ada.ipynb", edition(folder, "ada"))
    put(folder, "ada-2.ipynb", edition(folder, "ada", submitted="2031-01-01T00:00:00+00:00"), when=DEADLINE)
    found = collect(folder)
    assert (files(found), kinds(found, "ada")) == ({"ada": "ada-2.ipynb"}, ["future", "resubmitted"])
    put(folder, "ada-2.ipynb", "")
    put(
        folder,
        "ada-3.ipynb",
        edition(folder, "ada", submitted="2031-01-01T00:00:00+00:00"),
        when=datetime(2020, 1, 1, tzinfo=UTC),
    )
    assert files(collect(folder)) == {"ada": "ada.ipynb"}


def test_a_file_of_the_future_is_on_time_and_reported(folder):
    now = collecting._current_time()
    ahead = now + timedelta(days=400)
    put(folder, "ada.ipynb", edition(folder, "ada"), when=ahead)
    found = collect(folder)
    assert (found.submissions["ada"].days_late, kinds(found, "ada")) == (0, ["future"])
    # A stamp in the future does not hide a file's own time.
    put(
        folder,
        "ada.ipynb",
        edition(folder, "ada", submitted=ahead.isoformat()),
        when=DEADLINE + timedelta(days=2),
    )
    found = collect(folder)
    assert found.submissions["ada"].days_late > 0
    assert kinds(found, "ada")[0] == "future"
    # Clocks in another zone are hours ahead: nobody hands in later than now.
    put(folder, "ada.ipynb", edition(folder, "ada"), when=now + timedelta(hours=8))
    assert now <= collect(folder).submissions["ada"].when <= collecting._current_time()


def test_who_holds_anothers_notebook_cannot_replace_it(folder):
    put(folder, "20231001_small.ipynb", edition(folder, "20231001"))
    put(folder, "final.ipynb", edition(folder, "20231001"), when=DEADLINE)
    found = collect(folder)
    assert (files(found), kinds(found, "20231001")) == ({"20231001": "20231001_small.ipynb"}, ["nameless"])
    assert "final.ipynb came later" in found.submissions["20231001"].notes[0].en
    put(
        folder, "20231001_newer.ipynb", edition(folder, "20231001"), when=DEADLINE
    )  # a name, as the first has
    assert files(collect(folder)) == {"20231001": "20231001_newer.ipynb"}


def zipped(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_archives_within_archives_are_read(folder):
    one, other = edition(folder, "20231001"), edition(folder, "ada")
    twice = zipped({"deeper.zip": zipped({"x.ipynb": other})})
    platform = {"张三_1_file/作业.zip": zipped({"work/small.ipynb": one}), "Ada_2_file/deep.zip": twice}
    (folder.submitted / "all.zip").write_bytes(zipped(platform))
    assert files(collect(folder)) == {
        "20231001": "all.zip/张三_1_file/作业.zip/work/small.ipynb",
        "ada": "all.zip/Ada_2_file/deep.zip/deeper.zip/x.ipynb",
    }
    (folder.submitted / "all.zip").write_bytes(zipped({"all.zip": zipped(platform)}))
    found = collect(folder)
    assert list(files(found)) == ["20231001"]
    assert strange(found) == {"all.zip/all.zip/Ada_2_file/deep.zip/deeper.zip": "wrong-file"}


def test_a_bad_archive_costs_nobody_else_their_mark(folder, monkeypatch):
    monkeypatch.setattr("labkit_classroom.intake.collecting._MOST_IN_FOLDER", 300_000)
    bomb = {f"20231001/{at}.txt": bytes(100_000) for at in range(40)}
    last = {"ada/small.ipynb": edition(folder, "ada")}
    (folder.submitted / "all.zip").write_bytes(zipped(bomb | last))
    (folder.submitted / "b.zip").write_bytes(b"PK\x03\x04 no archive")
    (folder.submitted / "c.zip").write_bytes(zipped({"20231002/small.ipynb": edition(folder, "20231002")}))
    found = collect(folder)
    assert files(found) == {"ada": "all.zip/ada/small.ipynb", "20231002": "c.zip/20231002/small.ipynb"}
    assert strange(found)["b.zip"] == "unreadable"
    assert [kind for name, kind in strange(found).items() if "20231001" in name].count("too-many") == 37
    assert len(group_files(found.rejected)) < 6  # not a line for each of forty files


def test_one_bad_file_in_an_archive_costs_the_others_nothing(folder):
    content = zipped(
        {f"20231001/{at}.txt": "x" * 50 for at in range(9)} | {"ada.ipynb": edition(folder, "ada")}
    )
    broken = content.replace(zlib.crc32(b"x" * 50).to_bytes(4, "little"), b"abcd")
    (folder.submitted / "all.zip").write_bytes(broken)
    found = collect(folder)
    assert files(found) == {"ada": "all.zip/ada.ipynb"}
    assert len(found.unreadable["20231001"]) == 9
    (line,) = group_files(found.rejected)
    assert line.startswith("all.zip (9 files): it cannot be read")


@pytest.mark.parametrize(("content", "kind"), [
    (b"\x1f\x8b\x08\x00", "gzip"), (bytes(20_000_001), "20 MB"), ("{}".encode("utf-16"), "another kind"),
])  # fmt: skip
def test_a_file_is_named_rightly(folder, content, kind):
    (folder.submitted / "ada").write_bytes(content)
    ((_, why),) = collect(folder).rejected
    assert kind.removeprefix("g") in why.en or kind == "gzip" and ".tar.gz" in why.en


def test_a_notebook_in_utf_16_is_read(folder):
    (folder.submitted / "x.ipynb").write_bytes(edition(folder, "ada").encode("utf-16"))
    assert files(collect(folder)) == {"ada": "x.ipynb"}


@pytest.mark.parametrize(("rate", "hours", "share"), [
    (0.0, 30, 1.0), (0.1, -1, 1.0), (0.1, 1, 0.9), (0.1, 25, 0.8), (0.4, 80, 0.0), (1.0, 1, 0.0),
])  # fmt: skip
def test_late_work_loses_what_the_rule_says(folder, rate, hours, share):
    folder.late_rate = rate
    put(folder, "x.ipynb", edition(folder, "ada"), DEADLINE + timedelta(hours=hours))
    assert collect(folder).submissions["ada"].share == pytest.approx(share)
    assert ("late-points" in kinds(collect(folder), "ada")) == (share < 1)


@pytest.mark.skipif(sys.platform != "linux", reason="names in other encodings than the system's")
def test_any_name_can_be_read_and_printed(folder):
    text = edition(folder, "20231001").encode()
    (Path(os.fsdecode(os.fsencode(folder.submitted) + b"/" + "作业".encode("gbk") + b".ipynb"))).write_bytes(
        text
    )
    (folder.submitted / "x\x1b[31m.txt").write_text("red")
    (folder.submitted / os.fsdecode(b"\xff\xfe")).write_text("?")
    found = collect(folder)
    assert files(found) == {"20231001": "作业.ipynb"}
    for name, why in found.rejected:
        assert f"{name}{why}".isprintable()
        name.encode("utf-8")


def test_a_folder_that_cannot_be_read_is_told(folder, monkeypatch):
    walk = os.walk

    def some(top, onerror):
        onerror(PermissionError(13, "Permission denied", str(folder.submitted / "20231001")))
        return walk(top)

    monkeypatch.setattr("labkit_classroom.intake.collecting.os.walk", some)
    assert strange(collect(folder)) == {"20231001": "unreadable"}


@pytest.mark.parametrize(("name", "owner"), [
    ("2/primitives (1).ipynb", "2"), ("primitives (1).ipynb", None), ("1_primitives.ipynb", "1"),
    ("01 Ben.ipynb", "1"), ("1 (2).ipynb", "1"), ("lab 2.ipynb", None), ("12/small - Copy.ipynb", "12"),
    ("12/small - 副本.ipynb", "12"),
])  # fmt: skip
def test_small_numbers_are_ids_only_where_they_stand_apart(folder, name, owner):
    folder.students |= {id: Student(id, f"Student {id}") for id in ("1", "2", "12")}
    put(folder, name, nameless(edition(folder, "1")))
    assert files(collect(folder)) == ({owner: name} if owner else {})


def test_more_files_than_any_class_hands_in_are_left_and_told(folder, monkeypatch):
    monkeypatch.setattr("labkit_classroom.intake.collecting._MOST_FILES", 2)
    for name in ("1.txt", "2.txt", "ada.ipynb"):
        put(folder, name, edition(folder, "ada"))
    found = collect(folder)
    assert strange(found) == {"ada.ipynb": "too-many"}
    assert files(found) == {"ada": "2.txt"}


def test_a_file_that_cannot_be_read_costs_nobody_else(folder, monkeypatch):
    put(folder, "ada.ipynb", edition(folder, "ada"))
    put(folder, "20231001.ipynb", edition(folder, "20231001"))

    def opened(path, mode):
        if path.name == "ada.ipynb":
            raise PermissionError(13, "Permission denied", str(path))
        return open(path, mode)

    monkeypatch.setattr(collecting, "open", opened, raising=False)
    found = collect(folder)
    assert strange(found) == {"ada.ipynb": "unreadable"}
    assert files(found) == {"20231001": "20231001.ipynb"}
