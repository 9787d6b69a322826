"""Calls in which C stands still: a rank that is a thread lets the others go on while it stands in one.

What is read, locked or waited for may come from another rank, which needs the turn for it. Where a child process or
another computer gives it, the rank keeps its turn for a moment first: the same script takes the same turns.
Not seen are other calls that block; :mod:`..threads.stall_detector` tells of a rank that stands in one.
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
from functools import partial
from inspect import signature
from typing import Any

from labkit import turns
from labkit.base.patches import CType, Patch

from .rank import Rank, this_thread

# Seconds for which a rank keeps its turn, waiting for what comes from outside.
_MOMENT = 0.25
# The beginnings of addresses whose other end is on this computer, where it may be a rank.
_NEAR = ("127.", "::1", "0.0.0.0", "::")
# The connections that have a transaction open, and of which rank: others wait for its end.
_writing: dict[int, Rank] = {}


def patches() -> Iterator[Patch]:
    yield from _blocking_patches(subprocess.Popen, "wait communicate", _wait_for_child)
    for kind in (sqlite3.Connection, sqlite3.Cursor):
        yield from _blocking_patches(
            CType(kind), "execute executemany executescript commit rollback", _run_in_database
        )
    if not hasattr(select, "poll"):
        return
    import fcntl

    yield from _blocking_patches(fcntl, "flock", _lock)
    if hasattr(fcntl, "F_OFD_SETLK"):
        yield from _blocking_patches(fcntl, "lockf", partial(_lock, own=_lock_by_file))
    theirs: Any = CType(socket.socket.__base__)  # type: ignore[arg-type]  # C's
    yield from _blocking_patches(theirs, "recv recv_into recvfrom recvfrom_into recvmsg _accept", _receive)
    yield from _blocking_patches(CType(io.FileIO), "read readall readinto", _receive)
    yield from _blocking_patches(os, "read", _receive)


def _blocking_patches(owner: Any, names: str, function: Callable[..., Any]) -> Iterator[Patch]:
    """Let ``function(rank, real, …)`` stand for functions of ``owner`` in a rank that has the turn."""
    seen = this_thread  # at the end of the interpreter modules have lost their names

    def called(real: Any, *args: Any, **kwargs: Any) -> Any:
        rank = seen.rank
        if rank is None or turns.current_task() is None:
            return real(*args, **kwargs)
        return function(rank, real, *args, **kwargs)

    for name in names.split():
        if name in vars(owner):
            yield Patch.wrap(owner, name, called)


def _receive(rank: Rank, real: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
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
            rank.wait_in_c(lambda: bool(ready.poll(0)), limit)
    return real(source, *args, **kwargs)


def _lock(rank: Rank, real: Any, file: Any, how: int, *where: int, own: Any = None) -> Any:
    import fcntl

    lock = own or real

    def taken() -> bool:
        try:
            lock(file, how | fcntl.LOCK_NB, *where)
        except (BlockingIOError, PermissionError):
            return False
        except (OSError, ValueError):
            pass  # which is raised below
        return True

    if not how & (fcntl.LOCK_NB | fcntl.LOCK_UN) and not taken():
        rank.wait_in_c(taken)
    return lock(file, how, *where)


def _lock_by_file(file: Any, how: int, length: int = 0, start: int = 0, whence: int = 0) -> None:
    """``lockf`` with locks that belong to the open file, not to the process: ranks keep each other out by them."""
    import fcntl

    kinds = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
    what = fcntl.F_OFD_SETLK if how & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW
    fcntl.fcntl(file, what, struct.pack("hhqqi", kinds[how & ~fcntl.LOCK_NB], whence, start, length, 0))


def _wait_for_child(rank: Rank, real: Any, *args: Any, **kwargs: Any) -> Any:
    given = signature(real).bind(*args, **kwargs).arguments
    limit = given.pop("timeout", None)
    try:
        with turns.keep_turn():  # it sleeps between two looks, and would hand its turn on
            return real(**given, timeout=_MOMENT if limit is None else min(limit, _MOMENT))
    except subprocess.TimeoutExpired:
        if limit is not None and limit <= _MOMENT:
            raise
    given.pop("input", None)  # which it has by now
    return rank.call_outside_turn(lambda: real(**given, timeout=None if limit is None else limit - _MOMENT))


def _run_in_database(rank: Rank, real: Any, database: Any, *args: Any, **kwargs: Any) -> Any:
    connection = getattr(database, "connection", database)
    try:
        if any(one is not rank for one in _writing.values()):
            _writing[id(connection)] = rank  # it may come to have one before it has its turn again
            return rank.call_outside_turn(lambda: real(database, *args, **kwargs))
        return real(database, *args, **kwargs)
    finally:
        _writing.pop(id(connection), None)
        if connection.in_transaction:
            _writing[id(connection)] = rank
