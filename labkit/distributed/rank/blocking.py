"""Calls in which C stands still: a rank that is a thread lets the others go on while it stands in one.

What is read, locked or waited for may come from another rank, which needs the turn for it. Where a child process or
another computer gives it, the rank keeps its turn for a moment first: the same script takes the same turns.
Not seen are other calls that block; :mod:`..threads.watch` tells of a rank that stands in one.
"""

from __future__ import annotations

import io
import os
import select
import socket
import sqlite3
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any

from ... import turns
from ...base.patches import CType, Patch
from .rank import Rank, here

# Seconds for which a rank keeps its turn, waiting for what comes from outside.
_MOMENT = 0.25
# The beginnings of addresses whose other end is on this computer, where it may be a rank.
_NEAR = ("127.", "::1", "0.0.0.0", "::")
# The connections that have a transaction open, and of which rank: others wait for its end.
_writing: dict[int, Rank] = {}


def patches() -> Iterator[Patch]:
    yield Patch(subprocess.Popen, "wait", _child(subprocess.Popen.wait, 1))
    yield Patch(subprocess.Popen, "communicate", _child(subprocess.Popen.communicate, 2))
    for kind in (sqlite3.Connection, sqlite3.Cursor):
        for name in "execute executemany executescript commit rollback".split():
            if name in vars(kind):
                yield Patch(CType(kind), name, _in_database(getattr(kind, name)))
    if not hasattr(select, "poll"):
        return
    import fcntl

    yield Patch(fcntl, "flock", _locking(fcntl, fcntl.flock))
    if hasattr(fcntl, "F_OFD_SETLK"):
        yield Patch(fcntl, "lockf", _locking(fcntl, _own_lock(fcntl), fcntl.lockf))
    for name in "recv recv_into recvfrom recvfrom_into recvmsg _accept".split():
        owner: Any = CType(socket.socket.__base__)  # type: ignore[arg-type]  # C's
        yield Patch(owner, name, _receiving(vars(owner)[name]))
    for name in "read readall readinto".split():
        file: Any = CType(io.FileIO)
        yield Patch(file, name, _receiving(vars(file)[name]))
    yield Patch(os, "read", _receiving(os.read))


def _in_turn(function: Callable[..., Any], real: Callable[..., Any]) -> Any:
    """Makes a function that calls ``function(rank, …)`` in a rank that has the turn, and ``real`` elsewhere."""
    seen = here  # at the end of the interpreter modules have lost their names

    @wraps(real)
    def called(*args: Any, **kwargs: Any) -> Any:
        rank = seen.rank
        if rank is None or turns.participant() is None:
            return real(*args, **kwargs)
        return function(rank, *args, **kwargs)

    return called


def _receiving(real: Callable[..., Any]) -> Any:
    def receive(rank: Rank, source: Any, *args: Any, **kwargs: Any) -> Any:
        with suppress(OSError, ValueError):  # which the real one raises, too
            number = source if isinstance(source, int) else source.fileno()
            ready, limit, moment = select.poll(), None, _MOMENT
            ready.register(number, select.POLLIN)
            if isinstance(source, (int, io.FileIO)):
                patient = stat.S_ISFIFO(os.fstat(number).st_mode) and os.get_blocking(number)
            else:
                limit, patient = source.gettimeout(), source.gettimeout() != 0
                address = source.getsockname()
                near = not isinstance(address, tuple) or address[0].startswith(_NEAR)
                moment = 0.0 if near else _MOMENT
            if patient and not ready.poll(1000 * min(moment, limit or moment)):
                rank.stand(lambda: bool(ready.poll(0)), limit)
        return real(source, *args, **kwargs)

    return _in_turn(receive, real)


def _locking(fcntl: Any, lock: Callable[..., Any], real: Callable[..., Any] | None = None) -> Any:
    def acquire(rank: Rank, file: Any, how: int, *where: int) -> Any:
        def taken() -> bool:
            try:
                lock(file, how | fcntl.LOCK_NB, *where)
            except (BlockingIOError, PermissionError):
                return False
            except (OSError, ValueError):
                pass  # which is raised below
            return True

        if not how & (fcntl.LOCK_NB | fcntl.LOCK_UN) and not taken():
            rank.stand(taken)
        return lock(file, how, *where)

    return _in_turn(acquire, real or lock)


def _own_lock(fcntl: Any) -> Callable[..., Any]:
    """``lockf`` with locks that belong to the open file, not to the process: ranks keep each other out by them."""
    kinds = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}

    def lock(file: Any, how: int, length: int = 0, start: int = 0, whence: int = 0) -> None:
        what = fcntl.F_OFD_SETLK if how & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW
        fcntl.fcntl(file, what, struct.pack("hhqqi", kinds[how & ~fcntl.LOCK_NB], whence, start, length, 0))

    return lock


def _child(real: Callable[..., Any], place: int) -> Any:
    """``real`` waits for a child process; its ``timeout`` is the argument at ``place``."""

    def wait(rank: Rank, child: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs |= dict(zip(("input", "timeout")[2 - place :], args, strict=False))
        limit = kwargs.pop("timeout", None)
        try:
            return real(child, timeout=_MOMENT if limit is None else min(limit, _MOMENT), **kwargs)
        except subprocess.TimeoutExpired:
            if limit is not None and limit <= _MOMENT:
                raise
        return rank.away(lambda: real(child, timeout=None if limit is None else limit - _MOMENT))

    return _in_turn(wait, real)


def _in_database(real: Callable[..., Any]) -> Any:
    def call(rank: Rank, database: Any, *args: Any, **kwargs: Any) -> Any:
        connection = getattr(database, "connection", database)
        try:
            if any(one is not rank for one in _writing.values()):
                _writing[id(connection)] = rank  # it may come to have one before it has its turn again
                return rank.away(lambda: real(database, *args, **kwargs))
            return real(database, *args, **kwargs)
        finally:
            _writing.pop(id(connection), None)
            if connection.in_transaction:
                _writing[id(connection)] = rank

    return _in_turn(call, real)
