"""Runs a student's answers, and answers the judge's questions with data. Nobody trusts this process.

It knows neither tests nor expected values. Whatever the code does to this process, it can change only what it
answers; the judge takes that as a claim about values and compares.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
import traceback
import types
from contextlib import suppress
from typing import Any, BinaryIO

from ...meeting import MeetingPoint, at_the_bell
from . import banned, frames

_ROOMS = ("labkit.classroom", __name__.partition(".")[0])  # what a notebook imports from, and where that lies
_BUILTINS = dict(vars(builtins))
MESSAGE = 2000  # letters kept of an error's text
_PART_DONE = 42  # the exit code of a process that has answered all questions of a part


def serve(requests: BinaryIO, replies: BinaryIO, bell: int | None, forks: bool) -> None:
    """Answer requests until there are no more: ``define`` runs sources, ``ask`` calls a driver.

    What is asked up to ``done`` a process of its own answers (``forks``), so that what a part leaves behind is not met
    by the next. Where the answers have started threads, which no fork takes along, this one does.
    """
    # What leads nowhere already; a file of its own would be one more.
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.argv = [""]
    student: dict[str, Any] = {}  # the names that the answers define
    drivers: dict[str, dict[str, Any]] = {}
    is_part = False
    while True:
        try:
            request = frames.read(requests)
        except EOFError:
            return
        reply: dict[str, Any] = {"token": request["token"], "value": None, "error": None}
        try:
            if request["do"] == "take away":
                banned.Ban.find(request["names"]).take_away()
            elif request["do"] == "define":
                _define(student, request)
            elif request["do"] == "ask":
                if forks and not is_part and threading.active_count() == 1:
                    is_part = _is_another()
                    if not is_part:  # that one has answered
                        continue
                reply["value"] = _ask(student, drivers, request, bell)
        except BaseException as error:  # SystemExit, KeyboardInterrupt and whatever else the code raises
            reply["value"], reply["error"] = None, _describe_error(error)
        try:
            framed = frames.pack(reply)
        except Exception as error:
            unfit = {"kind": "Unfit", "message": str(error)[:MESSAGE], "line": None}
            framed = frames.pack(reply | {"value": None, "error": unfit})
        replies.write(framed)
        replies.flush()
        if is_part and request["do"] == "done":
            os._exit(_PART_DONE)


def _is_another() -> bool:
    """Forks: True in another process; False in this one when that is done, if it does not end with it."""
    child = os.fork()
    if not child:
        return True
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != _PART_DONE:
        os._exit(1)
    if os.getpid() == 1:  # behind a wall, where all other processes are what it left
        with suppress(OSError):
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, 0):
                pass
    return False


def _define(student: dict[str, Any], request: dict[str, Any]) -> None:
    """Run the sources, in order; the last is the answer asked about, whose errors count."""
    module = types.ModuleType("__main__")
    student.update({"__name__": "__main__", "__builtins__": __builtins__, **_stand_ins()})
    module.__dict__.update(student)
    sys.modules["__main__"] = module
    *before, last = request["sources"]
    for name, source in before:
        with suppress(BaseException):  # an error of another answer is not this one's
            exec(compile(source, f"<{name}>", "exec"), student)
    name, source = last
    exec(compile(source, f"<{name}>", "exec"), student)


def _stand_ins() -> dict[str, Any]:
    """Gives stand-ins for `begin` and `check`, which an answer may still call: here they do nothing."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    names = dict.fromkeys(("begin", "check"), nothing)
    for name in _ROOMS:  # the real ones are not to be seen here
        sys.modules[name] = room = types.ModuleType(name)
        room.__dict__.update(names)
    return names


def _ask(
    student: dict[str, Any], drivers: dict[str, dict[str, Any]], request: dict[str, Any], bell: int | None
) -> Any:
    source = request["module"]
    if source not in drivers:
        # A module of its own, so that what it defines can be pickled and pointed to by name; with Python's own
        # functions, whatever the answers have made of them.
        module = types.ModuleType(request["module_name"].replace(".", "_"))  # there is no package to look in
        module.__dict__["__builtins__"] = dict(_BUILTINS)
        sys.modules[module.__name__] = module
        drivers[source] = module.__dict__
        exec(compile(source, "<driver>", "exec"), module.__dict__)
    data = request["data"]
    if count := request["meet"]:
        data["meet"] = MeetingPoint(count) if bell is None else at_the_bell(bell)
    return drivers[source][request["driver"]](student, **data)


def _describe_error(error: BaseException) -> dict[str, Any]:
    line = None
    try:
        if isinstance(error, SyntaxError):
            line = error.lineno
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.startswith("<") and frame.filename not in ("<driver>", "<string>"):
                line = frame.lineno
        message = str(error)
    except BaseException:  # an exception of the student's own making may raise when it is shown
        message = ""
    return {"kind": type(error).__name__[:200], "message": message[:MESSAGE], "line": line}


def main(requests: int, replies: int, bell: int | None = None, forks: bool = False) -> None:
    """Serve on file descriptors, then end without running what the code left to be run at exit."""
    try:
        with os.fdopen(requests, "rb") as asked, os.fdopen(replies, "wb") as told:
            serve(asked, told, bell, forks)
    finally:
        os._exit(0)


def bare(preload: list[str]) -> None:
    """Serve on stdin and stdout, where nothing but this process keeps the student's code in."""
    import importlib

    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in 0, 1, 2:
        os.dup2(nowhere, number)
    for name in ("torch", *preload):
        importlib.import_module(name)
    main(requests, replies, forks=sys.platform == "linux")
