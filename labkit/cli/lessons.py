"""The learner's copy of the course: list its lessons, copy it to a folder, start a lesson afresh."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..base.files import reason
from ..base.language import say
from ..course.notebooks import copies as lessons
from ..course.notebooks.copies import Copy
from .console import tell
from .usage import CannotWrite, UsageError, add_language, add_options, bad_usage
from .wording import Wording

WORDING = Wording("lessons")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "labkit lessons {list,copy,fresh} ..."
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(usage: str, text: str) -> argparse.ArgumentParser:
        name = usage.split()[0]
        return actions.add_parser(name, help=text, description=text, usage=f"labkit lessons {usage}")

    listing = action(
        "list [--dir DIR]",
        say(
            en="the lessons, and what has become of your copy of each", zh="列出课程，以及你的每份副本的状态"
        ),
    )
    copying = action(
        "copy DIR",
        say(
            en="copy the course, without outputs, into a folder; what you changed there is kept",
            zh="把课程（不含输出）复制到一个文件夹；你在那里改过的笔记本会保留",
        ),
    )
    add_options(copying, WORDING, "folder", dir={"type": Path})
    freshening = action(
        "fresh LESSON ... [--dir DIR]",
        say(
            en="start lessons afresh; yours are kept beside them, and so is your progress",
            zh="让一课重新开始；你的那份会保留在旁边，进度也不会丢",
        ),
    )
    add_options(freshening, WORDING, "names", names={"nargs": "+"})
    add_folder(listing)
    add_folder(freshening)
    for made in (listing, copying, freshening):  # also behind the action
        add_language(made)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """The option that says where the copy is."""
    add_options(parser, WORDING, "where", dir={"type": Path})


def folder_of(options: argparse.Namespace) -> Path:
    """The folder of the copy that is asked for."""
    try:
        folder: Path = options.dir or lessons.default_folder()
    except RuntimeError:  # no HOME, and no such user
        raise UsageError(
            en="the home folder is not known: name a folder with --dir",
            zh="不知道主目录在哪里：请用 --dir 指定一个文件夹",
        ) from None
    return folder.absolute()


def run(options: argparse.Namespace) -> int:
    folder = folder_of(options)
    if options.action == "copy":
        lay_out(folder)
        where = f'labkit lab --dir "{folder}"' if folder != _default() else "labkit lab"
        tell(en=f"labkit: open it with: {where}", zh=f"labkit：打开它：{where}")
    elif options.action == "list":
        _list(folder)
    else:
        _freshen(options.names, folder)
    return 0


def lay_out(folder: Path) -> None:
    """Make or renew the copy in ``folder``, and say what was done."""
    try:
        laid = lessons.lay_out(folder)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise _cannot_write(error, folder) from None
    tell(
        en=f"labkit: your copy of the course is {folder} (yours to change: nothing of yours is overwritten)",
        zh=f"labkit：你的课程副本在 {folder}（随便改：你的改动不会被覆盖）",
    )
    if laid.new and len(laid.new) < len(list(lessons.copies(folder))):
        listed = ", ".join(map(str, laid.new))
        tell(en=f"labkit: laid there anew: {listed}", zh=f"labkit：补上了 {listed}")
    if laid.renewed:
        listed = ", ".join(map(str, laid.renewed))
        tell(en=f"labkit: renewed for this version: {listed}", zh=f"labkit：已更新到这个版本：{listed}")
    if laid.kept:
        listed = " ".join(map(str, laid.kept))
        at = "" if folder == _default() else f' --dir "{folder}"'
        tell(
            en=f"labkit: lessons that you changed or ran have changed in this version, too; yours stay. "
            f"To get the new ones, yours kept beside: labkit lessons fresh {listed}{at}",
            zh=f"labkit：有几课你改过或运行过，而这个版本也有更新；你的保持原样。想要新的（你的会保留在旁边）："
            f"labkit lessons fresh {listed}{at}",
        )


def _default() -> Path | None:
    try:
        return lessons.default_folder().absolute()
    except RuntimeError:
        return None


def _cannot_write(error: OSError, folder: Path) -> CannotWrite:
    return CannotWrite(
        en=f"cannot write {error.filename or folder}: {reason(error)}. Nothing of yours is lost; "
        "another folder can be named with --dir",
        zh=f"无法写入 {error.filename or folder}：{reason(error)}。你的东西都还在；可以用 --dir 指定别的文件夹",
    )


def _list(folder: Path) -> None:
    tell(en=f"your copy of the course: {folder}", zh=f"你的课程副本：{folder}")
    for copy in lessons.copies(folder):
        print(f"  {str(copy):<18}{_state(copy)}  {copy.title}")


def _state(copy: Copy) -> str:
    """Says in a few words of one width whether a copy is there, begun, fresh or older."""
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
                tell(en=f"labkit: {copy} is there now", zh=f"labkit：{copy} 已放好")
            elif copy.is_touched():
                aside = copy.freshen()
                tell(
                    en=f"labkit: {copy} is fresh; yours is kept as {aside.name}, and your progress stays",
                    zh=f"labkit：{copy} 已恢复如新；你的那份保留为 {aside.name}，进度不变",
                )
            elif not copy.is_current():
                copy.write()
                tell(en=f"labkit: {copy} is renewed", zh=f"labkit：{copy} 已更新")
            else:
                tell(en=f"labkit: {copy} is as it was given", zh=f"labkit：{copy} 没有动过")
        except OSError as error:
            raise _cannot_write(error, folder) from None
