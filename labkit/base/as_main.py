"""Run a program as ``__main__``, as ``python SCRIPT ARGS`` or ``python -m MODULE ARGS`` does in a new process.

This module imports the standard library alone: a process pays for what its script imports.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_run_module: Callable[..., object] = runpy._run_module_as_main  # type: ignore[attr-defined]  # what Python calls


class MainProgram:
    """A script file, a folder or archive with a ``__main__``, or a module, with its arguments. Compiled once."""

    def __init__(self, script: str, arguments: Sequence[str] = (), module: bool = False) -> None:
        self.script, self.arguments, self.module = script, tuple(arguments), module
        # Absolute as in Python: the caller may change the working directory.
        self.path = os.path.join(os.getcwd(), script)
        self._code: CodeType | None = None

    @property
    def name(self) -> str:
        """The file's name without its folder, or the module's whole name."""
        return self.script if self.module else Path(self.script).name

    def run(self, main: ModuleType) -> None:
        """Run the program as the new module ``main``."""
        sys.modules["__main__"] = main
        vars(main).update(__builtins__=builtins, __annotations__={})
        sys.argv = ["-m" if self.module else self.script, *self.arguments]
        if self.module:
            sys.path[0] = os.getcwd()
            _run_module(self.script)
        elif os.path.isdir(self.path) or zipfile.is_zipfile(self.path):
            sys.path[0] = self.path
            _run_module("__main__", False)
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(self.path))
            loader = SourceFileLoader("__main__", self.path)
            vars(main).update(__file__=self.path, __cached__=None, __loader__=loader)
            if self._code is None:
                self._code = compile(self._source(), self.path, "exec", dont_inherit=True)
            exec(self._code, vars(main))

    def _source(self) -> bytes:
        try:
            return Path(self.path).read_bytes()
        except OSError as error:  # in Python's own words
            why = f"[Errno {error.errno}] {error.strerror}"
            sys.stderr.write(f"{sys.executable}: can't open file {self.path!r}: {why}\n")
            raise SystemExit(2) from None


def exit_code(error: BaseException | None) -> int:
    """Return the exit code for ``error``, as a parent process sees it: negative for a signal."""
    match error:
        case None | SystemExit(code=None):
            return 0
        case SystemExit(code=int(code)):
            return code & 0xFF
        case KeyboardInterrupt():
            return -2
    return 1


# (error) -> whether to hide the error, because another process reports it.
hidden_errors: list[Callable[[BaseException], bool]] = []


def show_error(error: BaseException) -> None:
    """Show ``error`` as Python does at the end of a process."""
    if any(is_hidden(error) for is_hidden in hidden_errors):
        return
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif not isinstance(error.code, (int, type(None))):
        print(error.code, file=sys.stderr)
