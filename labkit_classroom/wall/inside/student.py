"""Run a student's answers, and answers the judge's questions with data. Nobody trusts this process.

It knows neither tests nor expected values. Whatever the code does to this process, it can change only what it
answers; the judge takes that as a claim about values and compares.
"""

from __future__ import annotations

import builtins
import os
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

from ...meeting import MeetingPoint, at_the_bell
from . import banned, frames
from . import kept as kept_things
from .sandbox import isolate_rank

_ROOMS = ("labkit.classroom", __name__.partition(".")[0])  # modules that a notebook imports `check` from
_BUILTINS = dict(vars(builtins))
MESSAGE = 2000  # letters kept of an error's text
_DONE = 42  # the exit code of a process that has replied


class StudentAnswers:
    """A student's answers, which run when a name of theirs is first looked up.

    start_rank   starts the process of one rank, which this one tells what to do through the socket ``fd``; None where
                 there is no process to fork it from.
    """

    def __init__(self) -> None:
        self.sources: list[list[str]] = []
        self.names: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.start_rank: Callable[[int], object] | None = None

    def __getitem__(self, name: str) -> Any:
        self.run()
        return self.names[name]

    def run(self) -> None:
        if not self.names:
            _define(self.names, self.sources)

    def order(self, work: Callable[..., Any]) -> dict[str, Any]:
        """Return what a rank needs to know to do ``work``, a function of the driver's module."""
        module = {name: self.asked[name] for name in ("module", "module_name")}
        return module | {"sources": self.sources, "driver": work.__name__}


def serve(
    requests: BinaryIO, replies: BinaryIO, bell: int | None, forks: bool, kept: kept_things.Rows
) -> None:
    """Answer requests until there are no more: ``define`` takes sources, ``ask`` calls a driver.

    A process of its own answers each question (``forks``), so that what one leaves behind does not reach the next. If
    the answers have started threads, which a fork does not copy, this process answers itself.

    With ``apart`` the answers run in those processes only: this one stays clean, and forks the zygote of the ranks.
    """
    # Nothing reads file 1; a file of its own would be one more.
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.argv = [""]
    answers, apart = StudentAnswers(), False
    # Local, since answers may replace any name of this module: what puts the names back is made anew each time.
    function, put_back = types.FunctionType, kept_things.put_back.__code__
    while True:
        with _zygote(answers, forks and apart, bell is not None):
            try:
                request = frames.read(requests)
            except EOFError:
                return
            reply: dict[str, Any] = {"token": request["token"], "value": None, "error": None}
            do, is_fork = request["do"], False
            try:
                if do == "take away":
                    banned.Ban.find(request["names"]).take_away()
                    kept = kept_things.with_refusals(kept)
                elif do == "define":
                    answers.sources, apart = request["sources"], request["apart"]
                    if forks and apart:
                        is_fork = _fork()
                        if not is_fork:
                            continue  # the other process has replied
                    answers.run()
                elif do == "ask":
                    if forks and threading.active_count() == 1:
                        is_fork = _fork()
                        if not is_fork:
                            continue
                    function(put_back, {})(kept)
                    reply["value"] = _ask(answers, request, bell, function(put_back, {}, argdefs=(kept,)))
            except BaseException as error:  # SystemExit, KeyboardInterrupt and whatever else the code raises
                reply["value"], reply["error"] = None, describe_error(error)
            try:
                framed = frames.pack(reply)
            except Exception as error:
                unfit = {"kind": "Unfit", "message": str(error)[:MESSAGE], "line": None}
                framed = frames.pack(reply | {"value": None, "error": unfit})
            replies.write(framed)
            replies.flush()
            if is_fork:
                os._exit(_DONE)


@contextmanager
def _zygote(answers: StudentAnswers, wanted: bool, sandboxed: bool) -> Iterator[None]:
    """Inside, ``answers`` can start ranks: a process forks them that was there before any input arrived."""
    if not wanted:
        yield
        return
    from . import ranks

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        ranks.serve_zygote(there, partial(_load_rank, sandboxed))
    there.close()
    answers.start_rank = lambda fd: socket.send_fds(here, [b"."], [fd])
    try:
        yield
    finally:
        answers.start_rank = None
        here.close()


def _load_rank(sandboxed: bool, order: Mapping[str, Any]) -> tuple[StudentAnswers, Callable[..., Any]]:
    """Run the answers and the driver in a rank's process."""
    if sandboxed and order["isolated"]:
        isolate_rank()
    answers = StudentAnswers()
    answers.sources = order["sources"]
    answers.run()
    return answers, _driver(order)


def _fork() -> bool:
    """Fork: True in the new process; False in this one once that has replied. End if it has not."""
    child = os.fork()
    if not child:
        return True
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != _DONE:
        os._exit(1)
    if os.getpid() == 1:  # in the sandbox, where every other process is one that it left
        with suppress(OSError):
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, 0):
                pass
    return False


def _define(names: dict[str, Any], sources: Sequence[Sequence[str]]) -> None:
    """Run the sources, in order; the last is the answer asked about, whose errors count."""
    module = types.ModuleType("__main__")
    names.update({"__name__": "__main__", "__builtins__": __builtins__, **_stand_ins()})
    module.__dict__.update(names)
    sys.modules["__main__"] = module
    *before, last = sources
    for name, source in before:
        with suppress(BaseException):  # an error in another answer costs this one nothing
            exec(compile(source, f"<{name}>", "exec"), names)
    name, source = last
    exec(compile(source, f"<{name}>", "exec"), names)


def _stand_ins() -> dict[str, Any]:
    """Return stand-ins for `begin` and `check`, which an answer may still call: here they do nothing."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    names = dict.fromkeys(("begin", "check"), nothing)
    for name in _ROOMS:  # the real ones are not to be seen here
        sys.modules[name] = room = types.ModuleType(name)
        room.__dict__.update(names)
    return names


def _ask(
    answers: StudentAnswers, request: dict[str, Any], bell: int | None, settle: Callable[[], object]
) -> Any:
    answers.asked, data = request, request["data"]
    if count := request["meet"]:
        data["meet"] = MeetingPoint(count) if bell is None else at_the_bell(bell)
    driver = _driver(request)
    driver.__globals__["settle"] = settle
    return driver(answers, **data)


def _driver(request: Mapping[str, Any]) -> Callable[..., Any]:
    """Run the driver's module, and return the function that is asked for."""
    # What it defines can be pickled and pointed to by name. It has Python's own functions, whatever the answers did.
    module = types.ModuleType(request["module_name"].replace(".", "_"))  # there is no package to look in
    module.__dict__["__builtins__"] = dict(_BUILTINS)
    sys.modules[module.__name__] = module
    exec(compile(request["module"], "<driver>", "exec"), module.__dict__)
    return module.__dict__[request["driver"]]  # type: ignore[no-any-return]


def describe_error(error: BaseException) -> dict[str, Any]:
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


def main(
    requests: int, replies: int, kept: kept_things.Rows, bell: int | None = None, forks: bool = False
) -> None:
    """Serve on file descriptors, then end without running what the code left to be run at exit."""
    try:
        with os.fdopen(requests, "rb") as asked, os.fdopen(replies, "wb") as told:
            serve(asked, told, bell, forks, kept)
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
    main(requests, replies, kept_things.keep(), forks=sys.platform == "linux")
