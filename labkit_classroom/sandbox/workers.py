"""The judge's side of a worker: send requests through pipes, enforce limits, kill; and the session of one question.

The judge measures limits and time itself: no report of a worker counts.
"""

from __future__ import annotations

import hashlib
import inspect
import marshal
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, BinaryIO

from labkit.base.language import say

from ..judging import Reply, RubricPart
from ..meeting import NUMBER
from ..messages import Problem, replace_controls
from .inside import frames

_TICK = 0.05  # seconds between two measurements of a worker
_MEETING_TICK = 0.01  # seconds between two counts of the waiting threads
_PATIENCE = 2.0  # idle seconds after which a meeting fails
_STARVED = 5  # extensions of the clock's limit for a runnable worker that gets no processor
_RELEASE_ALL = 4096  # zeros to write when a meeting fails, so that later waits return at once


@dataclass(frozen=True)
class Limits:
    """Limits of the student's code for one request.

    cpu        seconds of processor time of all processes together.
    wall       seconds on the clock; None allows for a busy machine.
    memory     bytes, besides those of the fork server.
    processes  processes and threads at the same time.
    """

    cpu: float = 5.0
    wall: float | None = None
    memory: int = 3 << 29
    processes: int = 96

    @property
    def clock(self) -> float:
        return 6 * self.cpu + 5 if self.wall is None else self.wall


class NoReply(Exception):
    """Raised when a worker sends no valid reply. ``args``: cpu, wall, memory, died or garbled; text for the teacher."""


@dataclass
class JudgeMeeting:
    """A barrier for threads and processes of a worker. The judge releases it when /proc shows all of them waiting."""

    pipe: BinaryIO
    waiting: Callable[[], tuple[int, bool]]
    _idle_since: float | None = None

    def poll(self, count: int) -> list[int] | None:
        """Release the waiting threads if there are ``count``, or no other thread runs any more.

        Return the numbers given to them, [] if the meeting failed, None to poll again.
        """
        here, is_awake = self.waiting()
        numbers: list[int] = []
        if here >= count:
            numbers = random.SystemRandom().sample(range(1, 1 << 20), count)
        else:
            self._idle_since = None if is_awake else self._idle_since or time.monotonic()
            if self._idle_since is None or time.monotonic() - self._idle_since < _PATIENCE:
                return None
        self._idle_since = None
        with suppress(OSError):  # the worker has ended
            self.pipe.write(b"".join(map(NUMBER.pack, numbers or [0] * _RELEASE_ALL)))
        return numbers


@dataclass
class SandboxWorker:
    """A process with a student's code, and the pipes to it.

    used_resources  returns CPU seconds and bytes of memory of all workers of the fork server.
    end             kills the worker with all its processes.
    """

    used_resources: Callable[[], tuple[float, int]]
    requests: BinaryIO
    replies: BinaryIO
    end: Callable[[], None]
    meeting: JudgeMeeting | None = None

    def __post_init__(self) -> None:
        self._inbox: queue.Queue[tuple[bytes, bytes] | Exception] = queue.Queue(2)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def request(self, message: dict[str, Any], limits: Limits, meet: int = 0) -> Reply:
        """Send ``message`` and return the reply. Kill the worker and raise :class:`NoReply` if none comes.

        meet   number of threads that shall meet meanwhile (see :class:`JudgeMeeting`).
        """
        try:
            if not self._inbox.empty():
                with suppress(frames.Garbled):
                    self._frame(self._inbox.get())
                raise frames.Garbled("it spoke before it was asked")
            token = secrets.token_hex(16)
            framed = frames.pack({"token": token, **message})
            writing = threading.Thread(target=self._write, args=(framed,), daemon=True)
            writing.start()
            found, met = self._wait(limits, meet)
            answer = check_reply(found, token, met)
            writing.join(limits.clock)
            return answer
        except (frames.Garbled, NoReply) as error:
            self.close()
            raise error if isinstance(error, NoReply) else NoReply("garbled", str(error)) from None

    def _frame(self, found: tuple[bytes, bytes] | Exception) -> tuple[bytes, bytes]:
        """Return the frame from the inbox, or raise the error found there."""
        if isinstance(found, frames.Garbled):
            raise found
        if isinstance(found, Exception):
            raise NoReply("died", say(en="its process is gone", zh="它的进程消失了"))
        return found

    def _wait(self, limits: Limits, meet: int) -> tuple[tuple[bytes, bytes], list[int]]:
        """Wait for the next frame; return it with the numbers given at the meeting."""
        end = time.monotonic() + limits.clock
        starved = _STARVED
        meets = meet > 0 and self.meeting is not None
        met = [] if meets else list(range(1, meet + 1))
        before: float | None = None
        while True:
            try:
                return self._frame(self._inbox.get(timeout=_MEETING_TICK if meets else _TICK)), met
            except queue.Empty:
                if meets and self.meeting and (numbers := self.meeting.poll(meet)) is not None:
                    met, meets = numbers, False
                cpu, memory = self.used_resources()
                if before is None:
                    before = cpu - _TICK if cpu > _TICK else 0.0
                if cpu - before > limits.cpu:
                    raise NoReply("cpu", f"more than {limits.cpu:g} s of processor time") from None
                if memory > limits.memory:
                    raise NoReply("memory", f"more than {limits.memory >> 20} MiB") from None
                if time.monotonic() > end and starved and self.meeting and self.meeting.waiting()[1]:
                    # The worker can run but gets no processor: let CPU time decide, not the clock.
                    end, starved = time.monotonic() + limits.clock, starved - 1
                if time.monotonic() > end:
                    raise NoReply("wall", f"no answer within {limits.clock:g} s") from None

    def _write(self, framed: bytes) -> None:
        with suppress(OSError, ValueError):  # the worker has ended, which the reader reports
            view = memoryview(framed)
            while view:
                view = view[self.requests.write(view) :]

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(frames.parts(self.replies))
        except (OSError, ValueError, EOFError) as error:
            self._inbox.put(error)

    def close(self) -> None:
        """Kill the worker with all processes, and wait for the end."""
        self.end()
        if self.meeting:
            self.meeting.pipe.close()
        with suppress(OSError):
            self.requests.close()
        end = time.monotonic() + 10
        while self._reader.is_alive() and time.monotonic() < end:
            with suppress(queue.Empty):  # unblock a reader that waits at a full inbox
                self._inbox.get_nowait()
            self._reader.join(_TICK / 10)
        with suppress(OSError):
            self.replies.close()


def check_reply(found: tuple[bytes, bytes], token: str, met: list[int]) -> Reply:
    """Check every field of the reply to the request with this token; return it as a Reply.

    Raise :class:`.frames.Garbled` if the frame is no such reply.
    """
    reply = frames.unpack(*found)
    if type(reply) is not dict or set(reply) != {"token", "value", "error"}:
        raise frames.Garbled("no reply")
    if type(reply["token"]) is not str or not secrets.compare_digest(reply["token"].encode(), token.encode()):
        raise frames.Garbled("a reply to another question")
    error = reply["error"]
    if error is None:
        return Reply(reply["value"], met=tuple(met))
    if (
        type(error) is not dict
        or set(error) != {"kind", "message", "line"}
        or not all(type(error[name]) is str for name in ("kind", "message"))
        or type(error["line"]) not in (int, type(None))
    ):
        raise frames.Garbled("no error")
    line = error["line"] if error["line"] is None or 0 < error["line"] < 1 << 31 else None
    kind, message = (
        replace_controls(error["kind"][:200]) or "Exception",
        replace_controls(error["message"][:2000]),
    )
    return Reply.from_error(kind, message, line, tuple(met))


@dataclass
class AnswerSession:
    """The judging of one question: the first request starts a worker with the student's answers.

    Each request is answered by a fork of the worker, so that its side effects do not reach the next one.

    start     starts a worker with limits and the names to remove.
    sources   (name, source) of the code to run before the first request, in order; the last is the answer.
    limits    of each request from now on.
    without   dotted names of functions and modules to remove.
    apart     run each rank of an answer in a process that shares nothing with the other ranks but their calls.
    troubles  why workers ended: (``Reply.ended``, in words).
    """

    start: Callable[[Limits, Sequence[str]], SandboxWorker]
    sources: Sequence[tuple[str, str]]
    limits: Limits = field(default_factory=Limits)
    without: Sequence[str] = ()
    apart: bool = False
    troubles: list[tuple[str, str]] = field(default_factory=list)
    _worker: SandboxWorker | None = None
    _undefined: Reply | None = None
    _replies: dict[object, Reply] = field(default_factory=dict)

    def answer(
        self, driver: Callable[..., Any], data: dict[str, Any], cpu: float | None = None, meet: int = 0
    ) -> Reply:
        """Return the result of ``driver(student, **data)`` if the answers can be run. It is an :data:`.Engine`.

        Parts of a question that ask for the same get the same reply.
        """
        request = driver, hashlib.sha256(frames.pack(data)).digest(), cpu, meet
        if request not in self._replies:
            self._replies[request] = self._ask(driver, data, cpu, meet)
        return self._replies[request]

    def _ask(self, driver: Callable[..., Any], data: dict[str, Any], cpu: float | None, meet: int) -> Reply:
        module, code = _code(driver)
        if self._worker is None and self._undefined is None:
            defined = self._define(self.sources)
            if defined.ended and len(self.sources) > 2:
                # An earlier answer may have ended the process: try the last one alone.
                defined = self._define([self.sources[0], self.sources[-1]])
            self._undefined = defined if defined.hint else None
        if self._undefined is not None:
            return self._undefined
        limits = self.limits if cpu is None else replace(self.limits, cpu=cpu)
        asked = {"module": code, "module_name": module, "driver": driver.__name__, "data": data}
        found = self._request({"do": "ask", "meet": meet, **asked}, limits, meet)
        if meet and not found.met:  # the pipe still holds zeros that the next meeting must not read
            self.close()
        return found

    def _define(self, sources: Sequence[tuple[str, str]]) -> Reply:
        self._worker = self.start(self.limits, self.without)
        pairs = [list(pair) for pair in sources]
        return self._request({"do": "define", "sources": pairs, "apart": self.apart}, self.limits)

    def _request(self, message: dict[str, Any], limits: Limits, meet: int = 0) -> Reply:
        assert self._worker is not None
        try:
            return self._worker.request(message, limits, meet)
        except NoReply as ended:
            why, told = ended.args
            self.troubles.append((why, told))
            self.close()
            return Reply.none(why)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


@cache
def _code(driver: Callable[..., Any]) -> tuple[str, str]:
    """Return the name of the module that defines ``driver``, and its code as text, compiled once for all workers.

    Raise Problem if it may not be sent to a worker.
    """
    module = inspect.getmodule(driver)
    if module is None or not inspect.isfunction(driver) or driver.__qualname__ != driver.__name__:
        raise Problem(
            en=f"ask: {driver!r} must be a function at the top of a module of drivers",
            zh=f"ask：{driver!r} 必须是 drivers 模块顶层的函数",
        )
    for name, value in vars(module).items():
        if isinstance(value, RubricPart) or name.startswith(("judge", "solution")):
            raise Problem(
                en=f"{module.__name__} is sent to the student's process and holds `{name}`: "
                "keep drivers in a module of their own",
                zh=f"{module.__name__} 会发送到学生的进程里，却含有 `{name}`：请把 drivers 放在单独的模块中",
            )
    code = compile(inspect.getsource(module), "<driver>", "exec", dont_inherit=True)
    return module.__name__, marshal.dumps(code).decode("latin-1")
