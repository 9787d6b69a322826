"""A command that another process carries out: it hands over its files and ends as the other one does."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys

# What Python and torch's libraries read when they start, or load: a program that is told of it starts by itself.
AT_THE_START = ("PYTHON", "OMP_", "MKL_", "KMP_", "GOMP_", "TORCH", "LD_", "MALLOC_", "LABKIT_MACHINE")
# But what the server sets right in the fork, and what torch sets itself.
SET_RIGHT = {
    "PYTHONPATH",
    "PYTHONIOENCODING",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "TORCHINDUCTOR_CACHE_DIR",
}
LANGUAGES = {"LANG", "LC_ALL", "LC_CTYPE"}  # Python's encodings follow them
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def at_the_start(environment: dict[str, str]) -> dict[str, str]:
    """The variables of an environment that a program which has begun can no longer follow."""
    return {
        name: value
        for name, value in environment.items()
        if value and (name in LANGUAGES or name.startswith(AT_THE_START)) and name not in SET_RIGHT
    }


def receive_bytes(connection: socket.socket, size: int) -> bytes:
    """So many bytes; fewer where the other side has gone."""
    found = b""
    while len(found) < size and (more := connection.recv(size - len(found))):
        found += more
    return found


def main(address: str, words: list[str]) -> int:
    """The exit code of ``python words…``."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:  # that process is no more
        os.execv(sys.executable, [sys.executable, *words])
    environment = dict(os.environ)
    environment.pop("JPY_PARENT_PID", None)  # kernels look whether their parent lives; the server ends ours
    told = "\0".join([*(f"{name}={value}" for name, value in at_the_start(environment).items())])
    theirs = receive_bytes(connection, struct.unpack("i", receive_bytes(connection, 4))[0]).decode(
        "utf-8", "surrogateescape"
    )
    # A program alone: not -u, -W, -X and such, nor a session at the prompt.
    plain = bool(words) and (words[0] in ("-c", "-m") and len(words) > 1 or not words[0].startswith("-"))
    if set(told.split("\0")) != set(theirs.split("\0")) or not plain:
        os.execv(sys.executable, [sys.executable, *words])
    # Signals are written into a pipe, so that none is lost while we begin to wait for something else.
    arrived, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    ignored = [number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN]
    for number in set(FORWARDED) - set(ignored):
        signal.signal(number, lambda *_: None)
    lines = [
        os.getcwd(),
        ",".join(map(str, ignored)),
        *(f"{name}={value}" for name, value in environment.items()),
    ]
    told = "\0".join([str(len(words)), *words, *lines])
    content = told.encode("utf-8", "surrogateescape")
    socket.send_fds(connection, [struct.pack("i", len(content))], [0, 1, 2])
    connection.sendall(content)
    (program,) = struct.unpack("i", receive_bytes(connection, 4))
    for file in (0, 1, 2):  # whoever reads what the program writes sees its end, not ours
        os.close(file)
    either: list[socket.socket | int] = [connection, arrived]
    while connection not in (ready := select.select(either, [], [])[0]):
        for each in os.read(arrived, 100) if ready else b"":
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                os.kill(program, each)
    answer = receive_bytes(connection, 4)
    status = struct.unpack("i", answer)[0] if len(answer) == 4 else 1 << 8
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in FORWARDED:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    os._exit(main(sys.argv[1], sys.argv[2:]))
