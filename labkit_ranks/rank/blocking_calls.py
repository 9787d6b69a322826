"""Calls that block in C: a rank in a thread lets the other ranks run meanwhile.

The data, lock or end of process that the rank waits for may come from another rank, which needs the turn. If a child
process or another computer provides it, the rank keeps its turn for a moment first, so that the same script takes the
same turns. Other calls that block are not patched; :mod:`..threads.stall_detector` reports a rank that waits in one.
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

# Seconds for which a rank keeps its turn when it waits for something outside of the ranks.
_MOMENT = 0.25
# Prefixes of addresses on this computer, where the other end may be a rank.
_NEAR = ("127.", "::1", "0.0.0.0", "::")
# Database connections with an open transaction, and their ranks: other ranks wait for the end.
_writing: dict[int, Rank] = {}


def patches() -> Iterator[Patch]:
    yield from _blocking_patches(subprocess.Popen, "wait communicate", _wait_for_child)
    statements = "execute executemany executescript commit rollback"
    for kind in (sqlite3.Connection, sqlite3.Cursor):
        yield from _blocking_patches(CType(kind), statements, _run_in_database)
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
    """Yield patches that call ``function(rank, real, …)`` in ranks with the turn."""
    seen = this_thread  # a local name: at the end of the interpreter, modules lose their globals

    def call_in_turn(real: Any, *args: Any, **kwargs: Any) -> Any:
        rank = seen.rank
        if rank is None or turns.current_task() is None:
            return real(*args, **kwargs)
        return function(rank, real, *args, **kwargs)

    for name in names.split():
        if name in vars(owner):
            yield Patch.wrap(owner, name, call_in_turn)


def _receive(rank: Rank, real: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
    with suppress(OSError, ValueError):  # the real call raises the same
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

    def try_lock() -> bool:
        try:
            lock(file, how | fcntl.LOCK_NB, *where)
        except (BlockingIOError, PermissionError):
            return False
        except (OSError, ValueError):
            pass  # raised again below
        return True

    if not how & (fcntl.LOCK_NB | fcntl.LOCK_UN) and not try_lock():
        rank.wait_in_c(try_lock)
    return lock(file, how, *where)


def _lock_by_file(file: Any, how: int, length: int = 0, start: int = 0, whence: int = 0) -> None:
    """Lock as ``lockf`` does, but for the open file instead of the process, so that ranks exclude each other."""
    import fcntl

    kinds = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
    what = fcntl.F_OFD_SETLK if how & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW
    fcntl.fcntl(file, what, struct.pack("hhqqi", kinds[how & ~fcntl.LOCK_NB], whence, start, length, 0))


def _wait_for_child(rank: Rank, real: Any, *args: Any, **kwargs: Any) -> Any:
    given = signature(real).bind(*args, **kwargs).arguments
    limit = given.pop("timeout", None)
    try:
        with turns.keep_turn():  # Popen.wait sleeps between two polls, and would yield the turn
            return real(**given, timeout=_MOMENT if limit is None else min(limit, _MOMENT))
    except subprocess.TimeoutExpired:
        if limit is not None and limit <= _MOMENT:
            raise
    given.pop("input", None)  # communicate() has it by now
    return rank.call_outside_turn(lambda: real(**given, timeout=None if limit is None else limit - _MOMENT))


def _run_in_database(rank: Rank, real: Any, database: Any, *args: Any, **kwargs: Any) -> Any:
    connection = getattr(database, "connection", database)
    try:
        if any(one is not rank for one in _writing.values()):
            _writing[id(connection)] = rank  # the rank may get a transaction before the next turn
            return rank.call_outside_turn(lambda: real(database, *args, **kwargs))
        return real(database, *args, **kwargs)
    finally:
        _writing.pop(id(connection), None)
        if connection.in_transaction:
            _writing[id(connection)] = rank
