"""Fork server: import torch, and fork for each command; the fork runs the command as a new Python would."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import io
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import warnings
from types import ModuleType
from typing import Any, NoReturn

sys.path.pop(0)  # this file's own folder
if "LABKIT_MACHINE" in os.environ:
    sys.exit("a process with LABKIT_MACHINE in its environment cannot be a fork server")
FIRST = list(sys.path)
BEGUN_WITH = dict(os.environ)  # importing torch adds to it

# Slow imports whose result does not depend on the program.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in ("numpy.random", "torch._dynamo", "torch.distributed", *sys.argv[3:]):
        importlib.import_module(name)


def client() -> ModuleType:
    """Load the client's module, for functions that both sides use."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "client.py")
    module = ModuleType("client")
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    return module


def serve(address: str, owner: int) -> tuple[list[str], list[str]]:
    """Fork for each client until ``owner`` ends. Return in each fork, with the command's words and surroundings."""
    known = client()
    variables = "\0".join(f"{name}={value}" for name, value in known.at_the_start(BEGUN_WITH).items())
    greeting = variables.encode("utf-8", "surrogateescape")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    os.write(1, b"listens\n")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system removes ended children
    gc.collect()
    gc.freeze()  # the collector must not touch, and so copy, memory shared by forks
    while lives(owner):
        if not select.select([listening], [], [], 1)[0]:
            continue
        connection = listening.accept()[0]
        if os.fork():
            connection.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listening.close()
        files: list[int] = []
        size = content = b""
        with contextlib.suppress(OSError):
            connection.sendall(struct.pack("i", len(greeting)) + greeting)
            size, files, _, _ = socket.recv_fds(connection, 4, 3)
            content = known.receive_bytes(connection, struct.unpack("i", size)[0]) if size else b""
        if not content:  # the client runs an ordinary Python, or has been killed
            os._exit(0)
        if program := os.fork():
            for file in files:
                os.close(file)
            watch(program, connection, owner)
        for at, file in enumerate(files):
            os.dup2(file, at)
            os.close(file)
        connection.close()
        lines = content.decode("utf-8", "surrogateescape").split("\0")
        return lines[1 : int(lines[0]) + 1], lines[int(lines[0]) + 1 :]
    os._exit(0)


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def watch(program: int, connection: socket.socket, owner: int) -> NoReturn:
    """Tell the client the program's number and, at its end, its exit status. Kill it if client or owner end before."""

    def kill_with_client() -> None:
        while lives(owner) and not select.select([connection], [], [], 1)[0]:
            pass
        os.kill(program, signal.SIGKILL)

    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("i", program))
    threading.Thread(target=kill_with_client, daemon=True).start()
    status = os.waitpid(program, 0)[1]
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("i", status))
    os._exit(0)


def reset_process(words: list[str], lines: list[str]) -> ModuleType:
    """Reset this process to the state of Python before a program's first line; return its ``__main__``."""
    folder, ignored, *environment = lines
    os.chdir(folder)
    os.environ.clear()
    for line in environment:
        name, _, value = line.partition("=")
        os.environ[name] = value
    for number in map(int, filter(None, ignored.split(","))):
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in map(int, filter(None, ignored.split(","))):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        made = standard(number, getattr(sys, name))
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    path = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [*map(os.path.abspath, path.split(os.pathsep) if path else ()), *FIRST]
    sys.modules["numpy.random"].seed()
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update({"__annotations__": {}, "__builtins__": builtins})
    return main


def standard(number: int, before: Any) -> Any:
    """Return standard stream ``number``, opened again with the properties of ``before``."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", f"{before.encoding}:{before.errors}").partition(
        ":"
    )
    errors = before.errors if number == 2 else errors or "strict"
    made: Any = io.open(number, before.mode, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115, UP020
    made.buffer.raw.name, made.mode = before.name, before.mode
    unbuffered = bool(number and os.environ.get("PYTHONUNBUFFERED"))
    made.reconfigure(line_buffering=made.isatty() or number == 2, write_through=unbuffered)
    return made


def run(words: list[str], main: ModuleType) -> None:
    """Run the program of ``python words…``."""
    if words[0] == "-m":
        sys.argv[:] = ["-m", *words[2:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path.insert(0, "")
        code = compile(words[1], "<string>", "exec")
        main.__dict__["__loader__"] = importlib.machinery.BuiltinImporter
    else:
        sys.argv[:] = words
        sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
        path = os.path.abspath(words[0])
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        main.__dict__.update({"__file__": path, "__cached__": None})
        main.__dict__["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    exec(code, main.__dict__)


def end(error: BaseException | None) -> NoReturn:
    """End as Python would, without freeing memory."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    elif error is not None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BrokenPipeError as broken:
        print(f"Exception ignored in: {sys.stdout!r}\nBrokenPipeError: {broken}", file=sys.stderr)
        code = 120
    sys.stderr.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(int(code or 0) & 0xFF)  # type: ignore[call-overload]


if __name__ == "__main__":
    program, surroundings = serve(sys.argv[1], int(sys.argv[2]))
    beginning = reset_process(program, surroundings)
    raised = None
    try:
        run(program, beginning)
    except BaseException as error:
        raised = error
    end(raised)
