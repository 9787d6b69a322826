"""A script as a rank's ``__main__``: what ``python -u SCRIPT ARGS`` or ``python -u -m MODULE ARGS`` does in a process.

It is compiled once and run by every rank, each in its own ``__main__`` (:mod:`.state` has what else is a rank's own).
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from ... import turns
from ...machine.tracebacks import without_ours
from ..rank.rank import Rank
from ..rank.system import Left, run_exit_functions


class Program:
    """What the ranks are to run: a file, a folder or archive with a ``__main__``, or a module; and its arguments."""

    def __init__(self, script: str, arguments: Sequence[str] = (), module: bool = False) -> None:
        self.script, self.arguments, self.module = script, tuple(arguments), module
        self.path = os.path.join(os.getcwd(), script)  # as Python says it; a rank may go to another folder
        self._code: CodeType | None = None

    def __call__(self, rank: Rank) -> None:
        """Run it as ``rank``, to the end of a process. What ends it with another code than 0 is shown, and raised."""
        failure: BaseException | None = None
        try:
            self._run(rank)
        except (turns.Ended, Left):
            raise  # it is no more: nothing of its own runs any longer
        except BaseException as error:
            failure = _shown(error)
        _wait_for_threads(rank)
        run_exit_functions(rank.state, _shown)
        _flush()
        if failure is not None:
            raise failure

    def _run(self, rank: Rank) -> None:
        main = rank.main
        sys.modules["__main__"] = main
        vars(main).update(__builtins__=builtins, __annotations__={})
        if self.module:
            sys.argv, sys.path[0] = ["-m", *self.arguments], os.getcwd()
            runpy._run_module_as_main(self.script)  # type: ignore[attr-defined]  # what python -m calls
            return
        sys.argv = [self.script, *self.arguments]
        if os.path.isdir(self.path) or zipfile.is_zipfile(self.path):
            sys.path[0] = self.path
            runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # what python FOLDER calls
            return
        sys.path[0] = os.path.dirname(os.path.realpath(self.path))
        loader = SourceFileLoader("__main__", self.path)
        vars(main).update(__file__=self.path, __cached__=None, __loader__=loader)
        if self._code is None:
            self._code = compile(Path(self.path).read_bytes(), self.path, "exec", dont_inherit=True)
        exec(self._code, vars(main))


def exit_code(error: BaseException | None) -> int:
    """The exit code of a process that ended by ``error``, as its parent is told: negative for a signal."""
    match error:
        case None:
            return 0
        case SystemExit(code=None):
            return 0
        case SystemExit(code=int(code)):
            return code & 0xFF
        case Left(code=code):
            return code
        case KeyboardInterrupt():
            return -2
    return 1


def _shown(error: BaseException) -> BaseException | None:
    """Show ``error`` as Python does at the end of a process; returns it, unless it ended well."""
    without_ours(error)
    if isinstance(error, SystemExit):
        if not isinstance(error.code, (int, type(None))):
            print(error.code, file=sys.stderr)
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    return error if exit_code(error) else None


def _wait_for_threads(rank: Rank) -> None:
    """A process ends when its threads have, but for its daemons."""
    for thread in threading.enumerate():
        own = vars(thread)
        if own.get("_labkit_rank") is rank and own["_labkit_waited_for"]:
            thread.join()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        flush: Callable[[], Any] | None = getattr(stream, "flush", None)
        if flush is not None:
            flush()
