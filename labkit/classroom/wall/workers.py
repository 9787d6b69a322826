"""One worker on the judge's side, which asks it through pipes, watches it, and ends it.

Only this process knows limits and clocks; whatever a worker says of itself is not asked for.
"""

from __future__ import annotations

import os
import queue
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from ...base.language import say
from ..meeting import NUMBER
from .inside import frames

_TICK = 0.05  # seconds between two looks at what a worker takes
_GLANCE = 0.01  # and at who has come to a meeting
_PATIENCE = 2.0  # seconds for which nobody is at work, before the meeting is given up
_STARVED = (
    5  # times the clock's limit that a worker which is ready to go on may have to wait for the processor
)
_FOR_ANYBODY = 4096  # numbers that are rung then: nobody has to wait again

# Says what the workers of a template have taken by now: seconds of processor time, bytes of memory of their own.
Taken = Callable[[], tuple[float, int]]


@dataclass(frozen=True)
class Limits:
    """The most that the student's code may take to answer one request.

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


class Ended(Exception):
    """No answer came. ``why``: cpu, wall, memory, died, garbled; ``str()`` says it in words, for the teacher."""

    def __init__(self, why: str, told: str) -> None:
        super().__init__(told)
        self.why = why


def by_keeper(here: socket.socket) -> Callable[[], None]:
    """Gives what ends a worker and all that it started, by its keeper at the other end of ``here``."""
    here.settimeout(10)

    def end() -> None:
        with suppress(OSError):
            here.shutdown(socket.SHUT_WR)
            while here.recv(4096):
                pass
        here.close()

    return end


class Bell:
    """Holds a meeting of a worker's threads or processes: it rings when the system's table says that all wait."""

    def __init__(self, pipe: int, waiting: Callable[[], tuple[int, bool]]) -> None:
        self._pipe, self._waiting = pipe, waiting
        self._still: float | None = None  # since when nobody is at work

    def look(self, count: int) -> list[int] | None:
        """Rings if all ``count`` wait, or nobody else will come; gives their numbers, [] if they did not meet."""
        here, is_awake = self._waiting()
        numbers: list[int] = []
        if here >= count:
            numbers = random.SystemRandom().sample(range(1, 1 << 20), count)
        else:
            self._still = None if is_awake else self._still or time.monotonic()
            if self._still is None or time.monotonic() - self._still < _PATIENCE:
                return None
        self._still = None
        with suppress(OSError):  # nobody is left to hear it
            os.write(self._pipe, b"".join(map(NUMBER.pack, numbers or [0] * _FOR_ANYBODY)))
        return numbers

    def is_awake(self) -> bool:
        """Says whether a thread of the worker waits for nothing but the processor."""
        return self._waiting()[1]

    def close(self) -> None:
        """Again is no harm."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1


class Worker:
    """One process with a student's code, and the pipes to it; ``end`` ends it and all that it started."""

    def __init__(
        self,
        taken: Taken,
        requests: BinaryIO,
        replies: BinaryIO,
        end: Callable[[], None],
        bell: Bell | None = None,
    ) -> None:
        self._taken, self._requests, self._replies, self._end = taken, requests, replies, end
        self._bell = bell
        self.met: list[int] = []  # the numbers given at the meeting of the last request
        self._inbox: queue.Queue[tuple[bytes, bytes] | Exception] = queue.Queue(2)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def request(self, message: dict[str, Any], limits: Limits, meet: int = 0) -> dict[str, Any]:
        """Sends ``message`` and gives the reply; :class:`Ended` if there is none, and then the worker is gone.

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
            reply = frames_reply(self._wait(limits, meet), token)
            writing.join(limits.clock)
            return reply
        except frames.Garbled as error:
            self.close()
            raise Ended("garbled", str(error)) from None
        except Ended:
            self.close()
            raise

    def _frame(self, found: tuple[bytes, bytes] | Exception) -> tuple[bytes, bytes]:
        """Hands on a frame that came; raises why there is none."""
        if isinstance(found, frames.Garbled):
            raise found
        if isinstance(found, Exception):
            raise Ended("died", say(en="its process is gone", zh="它的进程消失了"))
        return found

    def _wait(self, limits: Limits, meet: int) -> tuple[bytes, bytes]:
        end = time.monotonic() + limits.clock
        starved = _STARVED
        meets = meet > 0 and self._bell is not None
        self.met = [] if meets else list(range(1, meet + 1))
        before: float | None = None
        while True:
            try:
                return self._frame(self._inbox.get(timeout=_GLANCE if meets else _TICK))
            except queue.Empty:
                if meets and self._bell and (numbers := self._bell.look(meet)) is not None:
                    self.met, meets = numbers, False
                cpu, memory = self._taken()
                if before is None:
                    before = cpu - _TICK if cpu > _TICK else 0.0
                if cpu - before > limits.cpu:
                    raise Ended("cpu", f"more than {limits.cpu:g} s of processor time") from None
                if memory > limits.memory:
                    raise Ended("memory", f"more than {limits.memory >> 20} MiB") from None
                if time.monotonic() > end and starved and self._bell and self._bell.is_awake():
                    # It has work to do and does not get the processor: its time is counted, not the clock.
                    end, starved = time.monotonic() + limits.clock, starved - 1
                if time.monotonic() > end:
                    raise Ended("wall", f"no answer within {limits.clock:g} s") from None

    def _write(self, framed: bytes) -> None:
        with suppress(OSError, ValueError):  # it has ended; the reader says so
            view = memoryview(framed)
            while view:
                view = view[self._requests.write(view) :]

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(frames.parts(self._replies))
        except (OSError, ValueError, EOFError) as error:
            self._inbox.put(error)

    def close(self) -> None:
        """Kill it and all that it started, and wait until they are gone."""
        self._end()
        if self._bell:
            self._bell.close()
        with suppress(OSError):
            self._requests.close()
        end = time.monotonic() + 10
        while self._reader.is_alive() and time.monotonic() < end:
            with suppress(queue.Empty):  # it may be waiting to hand over a frame that nobody wants
                self._inbox.get_nowait()
            self._reader.join(_TICK / 10)
        with suppress(OSError):
            self._replies.close()


def frames_reply(found: tuple[bytes, bytes], token: str) -> dict[str, Any]:
    """Unpacks the reply to the request with this token; :class:`.frames.Garbled` if the frame holds another thing."""
    reply = frames.unpack(*found)
    if type(reply) is not dict or set(reply) != {"token", "value", "error"}:
        raise frames.Garbled("no reply")
    if type(reply["token"]) is not str or not secrets.compare_digest(reply["token"].encode(), token.encode()):
        raise frames.Garbled("a reply to another question")
    return reply
