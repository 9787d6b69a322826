"""The learner's copy of the course: list its lessons, copy it to a folder, start a lesson afresh."""

from __future__ import annotations

import argparse
from pathlib import Path

from labkit.base.files import reason
from labkit.base.language import say, series
from labkit_course.notebooks import copies as lessons
from labkit_course.notebooks.copies import LessonCopy

from .usage import CannotWrite, UsageError, add_language, add_options, bad_usage
from .wording import Wording

WORDING = Wording("lessons")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(prog=parser.prog, dest="action", metavar="ACTION", required=True)

    def action(usage: str) -> argparse.ArgumentParser:
        name = usage.split()[0]
        text = str(WORDING[f"action {name}"])
        return actions.add_parser(name, help=text, description=text, usage=f"labkit lessons {usage}")

    listing = action("list [--dir DIR]")
    copying = action("copy [--dir] DIR")
    where = copying.add_mutually_exclusive_group(required=True)
    add_options(where, WORDING, "folder", folder={"type": Path, "nargs": "?"})
    add_folder(where)
    freshening = action("fresh LESSON ... [--dir DIR]")
    add_options(freshening, WORDING, "names", names={"nargs": "+"})
    add_folder(listing)
    add_folder(freshening)
    for made in (listing, copying, freshening):  # allow --lang after the action
        add_language(made)


def add_folder(parser: argparse._ActionsContainer) -> None:
    """Add ``--dir``, the folder of the copy."""
    add_options(parser, WORDING, "where", dir={"type": Path})


def folder_of(options: argparse.Namespace) -> Path:
    """Return the folder of the copy."""
    try:
        folder: Path = vars(options).get("folder") or options.dir or lessons.default_folder()
    except RuntimeError:  # no HOME, and no such user
        raise UsageError(
            en="the home folder is unknown: name a folder with --dir",
            zh="不知道主目录在哪里：请用 --dir 指定一个文件夹",
        ) from None
    return folder.absolute()


def run(options: argparse.Namespace) -> int:
    folder = folder_of(options)
    if options.action == "copy":
        lay_out(folder)
        where = f'labkit lab --dir "{folder}"' if folder != _default() else "labkit lab"
        WORDING.tell("open", where=where)
    elif options.action == "list":
        _list(folder)
    else:
        _freshen(options.names, folder)
    return 0


def lay_out(folder: Path) -> None:
    """Create or renew the copy in ``folder``, and report the changes."""
    try:
        with bad_usage(ValueError):
            laid = lessons.lay_out(folder)
    except OSError as error:
        raise _cannot_write(error, folder) from None
    WORDING.tell("yours", folder=folder)
    if laid.new and len(laid.new) < len(list(lessons.copies(folder))):
        WORDING.tell("new", listed=series(laid.new))
    if laid.renewed:
        WORDING.tell("renewed", listed=series(laid.renewed))
    if laid.kept:
        at = "" if folder == _default() else f' --dir "{folder}"'
        WORDING.tell("kept", listed=" ".join(map(str, laid.kept)), at=at)


def _default() -> Path | None:
    try:
        return lessons.default_folder().absolute()
    except RuntimeError:
        return None


def _cannot_write(error: OSError, folder: Path) -> CannotWrite:
    return CannotWrite(
        en=f"cannot write {error.filename or folder}: {reason(error)}. Your files are unchanged; "
        "name another folder with --dir",
        zh=f"无法写入 {error.filename or folder}：{reason(error)}。你的东西都还在；可以用 --dir 指定别的文件夹",
    )


def _list(folder: Path) -> None:
    WORDING.tell("copy", folder=folder)
    for copy in lessons.copies(folder):
        print(f"  {str(copy):<18}{_state(copy)}  {copy.title}")


def _state(copy: LessonCopy) -> str:
    """Return the state of a copy in words of one width."""
    if not copy.is_there():
        return say(en="not there  ", zh="没有  ")
    touched = copy.is_touched()
    if copy.is_current():
        return say(en="begun      ", zh="已开始") if touched else say(en="fresh      ", zh="未动过")
    return say(en="older, kept", zh="旧版本")


def _freshen(named: list[str], folder: Path) -> None:
    with bad_usage(FileNotFoundError):
        found = [copy for name in named for copy in lessons.find(name, folder)]
    for copy in dict.fromkeys(found):
        try:
            if not copy.is_there():
                copy.write()
                WORDING.tell("there", copy=copy)
            elif copy.is_touched():
                WORDING.tell("fresh", copy=copy, aside=copy.freshen().name)
            elif not copy.is_current():
                copy.write()
                WORDING.tell("up-to-date", copy=copy)
            else:
                WORDING.tell("untouched", copy=copy)
        except OSError as error:
            raise _cannot_write(error, folder) from None
