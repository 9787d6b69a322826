"""One rank of a launched script: run as a file by :mod:`.launcher`, in a process of its own.

``python rank.py FOLDER SCRIPT [ARGS ...]`` runs SCRIPT as ``__main__``, as Python would. What it prints goes to
FOLDER/<rank>.out and .err; how it ended, or where it was when it was stopped, to FOLDER/<rank>.json. The process
ends when its standard input closes: then whoever launched it wants no more, or is no more.

It imports only the standard library, and nothing of labkit: a rank pays for what its script imports.
"""

import atexit
import builtins
import json
import os
import sys
import threading
import time
import traceback
import types
from importlib.machinery import SourceFileLoader


def main() -> None:
    folder, script, *arguments = sys.argv[1:]
    rank = os.environ["RANK"]
    for descriptor, kind in ((1, "out"), (2, "err")):
        file = os.open(os.path.join(folder, f"{rank}.{kind}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", line_buffering=True)  # type: ignore[union-attr]  # a fresh process's own
    note = Note(os.path.join(folder, f"{rank}.json"))
    note.write(pid=os.getpid())
    sys.argv = [script, *arguments]
    script = os.path.abspath(script)  # as Python does before it runs a file; sys.argv has what was typed
    # Python puts the script's folder first on the path, not this file's: its neighbours are no modules of the script.
    sys.path[0] = os.path.dirname(script)
    threading.Thread(target=end_with_the_launcher, args=(note, script), daemon=True).start()
    try:
        run_as_main(script)
    except SystemExit as stop:
        if stop.code in (None, 0):
            note.write(ended=True)
        else:
            note.write(error=f"SystemExit: {stop.code}", traceback=report(stop), time=time.time_ns())
        raise
    except BaseException as error:
        last = traceback.format_exception_only(error)[-1].strip()
        note.write(error=last, traceback=report(error), time=time.time_ns())
        sys.exit(1)
    note.write(ended=True)
    leave()


def leave() -> None:
    """End as a process does that multiprocessing has started: exit functions run, C++ is not taken apart.

    Taking gloo apart while other ranks do the same aborts now and then, after all the work is done.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons, as at every exit
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


class Note:
    """The facts that the launcher reads about this rank; written whole, so that it never reads half of it."""

    def __init__(self, path: str) -> None:
        self.path, self.lock = path, threading.Lock()
        self.facts: dict[str, object] = {}

    def write(self, **facts: object) -> None:
        with self.lock:
            self.facts |= facts
            with open(self.path + ".new", "w", encoding="utf-8") as file:
                json.dump(self.facts, file)
            os.replace(self.path + ".new", self.path)


def run_as_main(script: str) -> None:
    """Run a file as ``__main__``, with all that Python gives that module; ``script`` is an absolute path."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=script,
        __builtins__=builtins,
        __annotations__={},
        __cached__=None,
        __loader__=SourceFileLoader("__main__", script),
    )
    sys.modules["__main__"] = module
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def report(error: BaseException) -> str:
    """The traceback from the script on: without the frames of this file."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename == __file__:
        found = found.tb_next
    return "".join(traceback.format_exception(type(error), error, found))


def end_with_the_launcher(note: Note, script: str) -> None:
    while os.read(0, 1):
        pass
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    here = [line for line in traceback.extract_stack(frame) if line.filename == script] if frame else []
    if not {"error", "ended"} & note.facts.keys():
        note.write(stopped=True, **({"line": here[-1].lineno, "code": here[-1].line} if here else {}))
    os._exit(1)


if __name__ == "__main__":
    main()
