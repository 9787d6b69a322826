"""Let the fork server run a command with this process's files, and end with the same exit code."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys

# Variables read by Python or torch's libraries at the start. A command with other values runs in an ordinary Python.
AT_THE_START = ("PYTHON", "OMP_", "MKL_", "KMP_", "GOMP_", "TORCH", "LD_", "MALLOC_", "LABKIT_MACHINE")
# Exceptions, applied by the server in the fork, or set by torch.
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
    """Return the variables of an environment that a running Python can no longer follow."""
    return {
        name: value
        for name, value in environment.items()
        if value and (name in LANGUAGES or name.startswith(AT_THE_START)) and name not in SET_RIGHT
    }


def receive_bytes(connection: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes, or fewer if the other side has ended."""
    found = b""
    while len(found) < size and (more := connection.recv(size - len(found))):
        found += more
    return found


def main(address: str, words: list[str]) -> int:
    """Run ``python words…`` and return the exit code."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:  # the server has ended
        os.execv(sys.executable, [sys.executable, *words])
    environment = dict(os.environ)
    environment.pop(
        "JPY_PARENT_PID", None
    )  # a kernel would end with its parent; here the server ends kernels
    ours = "\0".join([*(f"{name}={value}" for name, value in at_the_start(environment).items())])
    theirs = receive_bytes(connection, struct.unpack("i", receive_bytes(connection, 4))[0]).decode(
        "utf-8", "surrogateescape"
    )
    # A program without Python's options (-u, -W, -X), and no interactive session.
    plain = bool(words) and (words[0] in ("-c", "-m") and len(words) > 1 or not words[0].startswith("-"))
    if set(ours.split("\0")) != set(theirs.split("\0")) or not plain:
        os.execv(sys.executable, [sys.executable, *words])
    # Write signals into a pipe, so that select() misses no early signal.
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
    content = "\0".join([str(len(words)), *words, *lines]).encode("utf-8", "surrogateescape")
    socket.send_fds(connection, [struct.pack("i", len(content))], [0, 1, 2])
    connection.sendall(content)
    (program,) = struct.unpack("i", receive_bytes(connection, 4))
    for file in (0, 1, 2):  # a reader of the output must see the program's end, not this process's
        os.close(file)
    either: list[socket.socket | int] = [connection, arrived]
    while connection not in (ready := select.select(either, [], [])[0]):
        for each in os.read(arrived, 100) if ready else b"":
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
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
