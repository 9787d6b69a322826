"""The worker: run a student's answers, and reply to the judge's requests with data. The judge does not trust it.

It knows neither tests nor expected values. Whatever the answer does to this process can change only the replies,
which the judge compares with the right values.
"""

from __future__ import annotations

import builtins
import marshal
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from labkit.base.language import say

from ...meeting import MeetingPoint, judge_meeting_point
from . import banned, frames
from . import restore as restoring
from .linux_sandbox import isolate_rank

if TYPE_CHECKING:
    from .ranks import RankServer

_CHECK_MODULES = ("labkit.classroom", __name__.partition(".")[0])  # where notebooks import `check` from
_BUILTINS = dict(vars(builtins))
MESSAGE = 2000  # characters of an error's text
_DONE = 42  # the exit code of a fork that has replied


class StudentAnswers:
    """A student's answers. Looking up the first name runs them.

    rank_server   starts processes that run the answers, which no other process may run then; None without one.
    """

    def __init__(self) -> None:
        self.sources: list[list[str]] = []
        self.names: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.rank_server: RankServer | None = None

    def __getitem__(self, name: str) -> Any:
        if self.rank_server is not None:
            en = f"the question is in APART: a driver calls {name} only through ranks.run"
            raise RuntimeError(say(en=en, zh=f"这道题写在 APART 里：驱动函数只能通过 ranks.run 调用 {name}"))
        self.run()
        return self.names[name]

    def run(self) -> None:
        if not self.names:
            _define(self.names, self.sources)

    def order(self, work: Callable[..., Any]) -> dict[str, Any]:
        """Return the sources with which a rank can do ``work``, a function of the driver's module."""
        module = {name: self.asked[name] for name in ("module", "module_name")}
        return module | {"sources": self.sources, "driver": work.__name__}


def serve(
    requests: BinaryIO, replies: BinaryIO, meeting: int | None, forks: bool, snapshot: restoring.Snapshot
) -> None:
    """Answer requests until the judge closes the pipe: ``define`` runs sources, ``ask`` calls a driver.

    With ``forks``, a fork answers each request, so that its side effects do not reach the next one. If the answers have
    started threads, which a fork does not copy, this process answers.

    If ``define`` says ``apart``, the answers run in the processes of a rank server, never in this one, which answers.
    """
    # File 1 is /dev/null already.
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.argv = [""]
    answers, apart = StudentAnswers(), False
    # Answers may replace any name of this module, so keep local references.
    function, restore = types.FunctionType, restoring.restore.__code__
    while True:
        try:
            request = frames.read(requests)
        except EOFError:
            return
        reply: dict[str, Any] = {"token": request["token"], "value": None, "error": None}
        do, is_fork = request["do"], False
        try:
            if do == "ban":
                ban = banned.Ban.find(request["names"])
                ban.apply()
                snapshot = restoring.keep_refusals(snapshot, ban.functions)
            elif do == "define":
                answers.sources, apart = request["sources"], request["apart"] and forks
                if apart:
                    is_fork = _fork()
                    if not is_fork:  # the fork has replied
                        answers.rank_server = _fork_rank_server(is_sandboxed=meeting is not None)
                        continue
                _close_machine()
                answers.run()
            elif do == "ask":
                if forks and not apart and threading.active_count() == 1:
                    is_fork = _fork()
                    if not is_fork:
                        continue
                if not apart:  # else no code of the student's has run in this process
                    function(restore, {})(snapshot)
                reply["value"] = _call_driver(
                    answers, request, meeting, function(restore, {}, argdefs=(snapshot,))
                )
        except BaseException as error:  # SystemExit and KeyboardInterrupt, too
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


def _close_machine() -> None:
    """Close the machine that the fork server has opened for ranks: on a machine, threads take turns."""
    from simgpu import machine_in_use

    if (machine := machine_in_use()) is not None:
        machine.close()


def _fork_rank_server(is_sandboxed: bool) -> RankServer:
    from . import ranks

    return ranks.RankServer(partial(_load_rank, is_sandboxed), is_sandboxed)


def _load_rank(is_sandboxed: bool, order: Mapping[str, Any]) -> tuple[StudentAnswers, Callable[..., Any]]:
    """Run the answers and the driver in a rank's process."""
    if is_sandboxed and order["isolated"]:
        isolate_rank()
    answers = StudentAnswers()
    answers.sources = order["sources"]
    answers.run()
    return answers, _driver(order)


def _fork() -> bool:
    """Fork. Return True in the child; return False in the parent once the child has replied, or end if it has not."""
    child = os.fork()
    if not child:
        return True
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != _DONE:
        os._exit(1)
    if os.getpid() == 1:  # in the sandbox: kill all processes that the child left
        with suppress(OSError):
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, 0):
                pass
    return False


def _define(names: dict[str, Any], sources: Sequence[Sequence[str]]) -> None:
    """Run the sources, in order. Raise errors of the last one only, the answer in question."""
    module = types.ModuleType("__main__")
    names.update({"__name__": "__main__", "__builtins__": __builtins__, **_stubs()})
    module.__dict__.update(names)
    sys.modules["__main__"] = module
    *before, last = sources
    for name, source in before:
        with suppress(BaseException):  # ignore errors of other answers
            exec(compile(source, f"<{name}>", "exec"), names)
    name, source = last
    exec(compile(source, f"<{name}>", "exec"), names)


def _stubs() -> dict[str, Any]:
    """Return stubs of `begin` and `check`, which an answer may still call: here they do nothing."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    names = dict.fromkeys(("begin", "check"), nothing)
    for name in _CHECK_MODULES:  # the real ones are hidden
        sys.modules[name] = module = types.ModuleType(name)
        module.__dict__.update(names)
    return names


def _call_driver(
    answers: StudentAnswers, request: dict[str, Any], meeting: int | None, restore_names: Callable[[], object]
) -> Any:
    answers.asked, data = request, request["data"]
    if count := request["meet"]:
        data["meet"] = MeetingPoint(count) if meeting is None else judge_meeting_point(meeting)
    driver = _driver(request)
    driver.__globals__["restore_names"] = restore_names
    return driver(answers, **data)


def _driver(request: Mapping[str, Any]) -> Callable[..., Any]:
    """Run the driver's module, and return the function that the request names."""
    # The module is in sys.modules, so that its functions can be pickled, and has the original builtins.
    module = types.ModuleType(
        request["module_name"].replace(".", "_")
    )  # a dot would make Python look for a package
    module.__dict__["__builtins__"] = dict(_BUILTINS)
    sys.modules[module.__name__] = module
    exec(marshal.loads(request["module"].encode("latin-1")), module.__dict__)
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
    except BaseException:  # a student's exception may raise in __str__
        message = ""
    return {"kind": type(error).__name__[:200], "message": message[:MESSAGE], "line": line}


def main(
    requests: int, replies: int, snapshot: restoring.Snapshot, meeting: int | None = None, forks: bool = False
) -> None:
    """Serve on file descriptors, then end without exit handlers, which the answer may have registered."""
    try:
        with os.fdopen(requests, "rb") as asked, os.fdopen(replies, "wb") as told:
            serve(asked, told, meeting, forks, snapshot)
    finally:
        os._exit(0)


def serve_on_stdio(preload: list[str]) -> None:
    """Serve on stdin and stdout, without a sandbox."""
    import importlib

    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in 0, 1, 2:
        os.dup2(nowhere, number)
    for name in ("torch", *preload):
        importlib.import_module(name)
    main(requests, replies, restoring.take_snapshot(), forks=sys.platform == "linux")
