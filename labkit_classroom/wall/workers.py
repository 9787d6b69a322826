"""The judge's side of a worker: requests through pipes, limits, and its end; and the session that judges
one question.

Only this process measures limits and time; nothing that a worker reports of itself counts.
"""

from __future__ import annotations

import inspect
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
from ..words import Problem, harmless
from .inside import frames

_TICK = 0.05  # seconds between two looks at what a worker takes
_GLANCE = 0.01  # and at who has come to a meeting
_PATIENCE = 2.0  # idle seconds before a meeting is given up
_STARVED = 5  # times the clock's limit that a worker may wait for the processor, ready to go on
_FOR_ANYBODY = 4096  # zeros to ring then, enough for everybody's later waits


@dataclass(frozen=True)
class Limits:
    """Limits of the student's code for one request.

    cpu        seconds of processor time, of all its processes together.
    wall       seconds on the clock; None: enough for a machine that is busy with other things.
    memory     bytes beyond what the template has.
    processes  processes and threads at once.
    """

    cpu: float = 5.0
    wall: float | None = None
    memory: int = 3 << 29
    processes: int = 96

    @property
    def clock(self) -> float:
        return 6 * self.cpu + 5 if self.wall is None else self.wall


class NoReply(Exception):
    """No answer came. ``args``: cpu, wall, memory, died or garbled; and the same in words, for the teacher."""


@dataclass
class Bell:
    """A meeting of a worker's threads or processes: it rings when /proc shows that all of them wait."""

    pipe: BinaryIO
    waiting: Callable[[], tuple[int, bool]]
    _still: float | None = None  # when all threads became idle

    def look(self, count: int) -> list[int] | None:
        """Ring if all ``count`` wait, or nobody else will come. Return their numbers, [] if they did not meet."""
        here, is_awake = self.waiting()
        numbers: list[int] = []
        if here >= count:
            numbers = random.SystemRandom().sample(range(1, 1 << 20), count)
        else:
            self._still = None if is_awake else self._still or time.monotonic()
            if self._still is None or time.monotonic() - self._still < _PATIENCE:
                return None
        self._still = None
        with suppress(OSError):  # the worker has ended
            self.pipe.write(b"".join(map(NUMBER.pack, numbers or [0] * _FOR_ANYBODY)))
        return numbers


@dataclass
class SandboxWorker:
    """A process with a student's code, and the pipes to it.

    used_resources  returns CPU seconds and bytes of memory of all workers of its template.
    end    ends it and all that it started.
    """

    used_resources: Callable[[], tuple[float, int]]
    requests: BinaryIO
    replies: BinaryIO
    end: Callable[[], None]
    bell: Bell | None = None

    def __post_init__(self) -> None:
        self._inbox: queue.Queue[tuple[bytes, bytes] | Exception] = queue.Queue(2)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def request(self, message: dict[str, Any], limits: Limits, meet: int = 0) -> Reply:
        """Send ``message`` and return the reply. Raise :class:`NoReply` if none comes; the worker is then gone.

        meet   how many are to meet meanwhile (see :class:`Bell`).
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
        """Return a frame that came, or raise why there is none."""
        if isinstance(found, frames.Garbled):
            raise found
        if isinstance(found, Exception):
            raise NoReply("died", say(en="its process is gone", zh="它的进程消失了"))
        return found

    def _wait(self, limits: Limits, meet: int) -> tuple[tuple[bytes, bytes], list[int]]:
        """Return the frame that comes, and the numbers given at the meeting."""
        end = time.monotonic() + limits.clock
        starved = _STARVED
        meets = meet > 0 and self.bell is not None
        met = [] if meets else list(range(1, meet + 1))
        before: float | None = None
        while True:
            try:
                return self._frame(self._inbox.get(timeout=_GLANCE if meets else _TICK)), met
            except queue.Empty:
                if meets and self.bell and (numbers := self.bell.look(meet)) is not None:
                    met, meets = numbers, False
                cpu, memory = self.used_resources()
                if before is None:
                    before = cpu - _TICK if cpu > _TICK else 0.0
                if cpu - before > limits.cpu:
                    raise NoReply("cpu", f"more than {limits.cpu:g} s of processor time") from None
                if memory > limits.memory:
                    raise NoReply("memory", f"more than {limits.memory >> 20} MiB") from None
                if time.monotonic() > end and starved and self.bell and self.bell.waiting()[1]:
                    # The worker is ready but does not get the processor: let CPU time decide, not the clock.
                    end, starved = time.monotonic() + limits.clock, starved - 1
                if time.monotonic() > end:
                    raise NoReply("wall", f"no answer within {limits.clock:g} s") from None

    def _write(self, framed: bytes) -> None:
        with suppress(OSError, ValueError):  # it has ended; the reader says so
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
        """Kill the worker and all that it started, and wait until they are gone."""
        self.end()
        if self.bell:
            self.bell.pipe.close()
        with suppress(OSError):
            self.requests.close()
        end = time.monotonic() + 10
        while self._reader.is_alive() and time.monotonic() < end:
            with suppress(queue.Empty):  # the reader may be blocked on a full inbox
                self._inbox.get_nowait()
            self._reader.join(_TICK / 10)
        with suppress(OSError):
            self.replies.close()


def check_reply(found: tuple[bytes, bytes], token: str, met: list[int]) -> Reply:
    """Check every field of the reply to the request with this token; return it as a Reply.

    :class:`.frames.Garbled` if the frame holds another thing.
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
    kind, message = harmless(error["kind"][:200]) or "Exception", harmless(error["message"][:2000])
    return Reply.from_error(kind, message, line, tuple(met))


@dataclass
class AnswerSession:
    """The judging of one question: starts a worker with the student's answers when first asked.

    A process forked from the worker answers each question, so that what one leaves behind costs the next nothing.

    start     gives a worker within limits, in which what is named does not exist.
    sources   (name, source) of what is run before the first question is asked, in order; the last is the answer.
    limits    of each request from now on.
    without   dotted names of what does not exist for them.
    apart     whether each rank of an answer is a process that shares nothing with the others but their calls.
    troubles  why workers came to their end: (``Answer.ended``, in words).
    """

    start: Callable[[Limits, Sequence[str]], SandboxWorker]
    sources: Sequence[tuple[str, str]]
    limits: Limits = field(default_factory=Limits)
    without: Sequence[str] = ()
    apart: bool = False
    troubles: list[tuple[str, str]] = field(default_factory=list)
    _worker: SandboxWorker | None = None
    _undefined: Reply | None = None

    def answer(
        self, driver: Callable[..., Any], data: dict[str, Any], cpu: float | None = None, meet: int = 0
    ) -> Reply:
        """Return the result of ``driver(student, **data)``, if the answers can be run; the rest: :data:`.Engine`."""
        module, source = _source(driver)
        if self._worker is None and self._undefined is None:
            defined = self._define(self.sources)
            if defined.ended and len(self.sources) > 2:
                # Another answer, which this one may call, may have failed: try without the others.
                defined = self._define([self.sources[0], self.sources[-1]])
            self._undefined = defined if defined.hint else None
        if self._undefined is not None:
            return self._undefined
        limits = self.limits if cpu is None else replace(self.limits, cpu=cpu)
        asked = {"module": source, "module_name": module, "driver": driver.__name__, "data": data}
        found = self._ask({"do": "ask", "meet": meet, **asked}, limits, meet)
        if meet and not found.met:  # numbers are left that the next meeting must not find
            self.close()
        return found

    def _define(self, sources: Sequence[tuple[str, str]]) -> Reply:
        self._worker = self.start(self.limits, self.without)
        pairs = [list(pair) for pair in sources]
        return self._ask({"do": "define", "sources": pairs, "apart": self.apart}, self.limits)

    def _ask(self, message: dict[str, Any], limits: Limits, meet: int = 0) -> Reply:
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
def _source(driver: Callable[..., Any]) -> tuple[str, str]:
    """Return name and source of the module in which ``driver`` stands; Problem if it may not be sent."""
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
    return module.__name__, inspect.getsource(module)
