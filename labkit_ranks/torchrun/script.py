"""A script for ranks in one process: compiled once, and run by each rank in its own ``__main__``.

:mod:`..rank.process_state` has the rest of a rank's state.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import thread as pools

from labkit import turns
from labkit.base import as_main
from labkit.base.language import wrong
from simgpu.tracebacks import fold_frames, strip_labkit_frames

from ..rank.own_modules import is_installed_code
from ..rank.rank import Rank
from ..rank.system_calls import RankExit, run_exit_functions
from .logs import LogFile


class RankProgram(as_main.MainProgram):
    """A program for ranks, each to the end of a process.

    runs             runs the program in a rank; the launcher may wrap it.
    deferred_errors  errors that the launcher prints last.
    """

    deferred_errors: tuple[BaseException, ...] = ()

    def __init__(self, script: str, arguments: Sequence[str] = (), module: bool = False) -> None:
        super().__init__(script, arguments, module)
        self.runs: Callable[[Rank], object] = lambda rank: self.run(rank.main)

    def check_exists(self) -> None:
        """Raise FileNotFoundError if there is no such file. A missing module fails when it runs, as in Python."""
        if not self.module and not os.path.exists(self.path):
            raise wrong(FileNotFoundError, en=f"there is no file {self.script}", zh=f"没有文件 {self.script}")

    def __call__(self, rank: Rank) -> None:
        """Run as ``rank``, to the end of a process. Print and raise an error that ends it with another code than 0."""
        failure: BaseException | None = None
        try:
            self.runs(rank)
        except (turns.TaskEnded, RankExit):
            raise  # the rank is gone: run nothing more of its code
        except BaseException as error:
            # Print the same error of several ranks once.
            others = [(type(other), str(other)) for other in rank.world.failed.values()]
            if (type(error), str(error)) in others and exit_code(error):
                failure = error
            elif isinstance(error, turns.Deadlock) or hasattr(error, "report"):
                failure, self.deferred_errors = error, (*self.deferred_errors, error)
                if isinstance(sys.stderr, LogFile):  # also into its own file
                    _show_error(error)
            else:
                failure = _show_error(error)
        for thread in threading.enumerate():  # a process waits for its threads, except daemons
            own = vars(thread)
            if own.get("_labkit_rank") is rank and own.get("_labkit_waited_for"):
                # As Python does: a pool's threads wait for work until its shutdown.
                if thread in pools._threads_queues and (pool := thread._args[0]()) is not None:  # type: ignore[attr-defined]
                    pool.shutdown()
                thread.join()
        run_exit_functions(rank.state, _show_error)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "flush"):
                stream.flush()
        if failure is not None:
            raise failure


def exit_code(error: BaseException | None) -> int:
    """Return the exit code of a rank that ended by ``error``: negative for a signal."""
    return error.code if isinstance(error, RankExit) else as_main.exit_code(error)


def _show_error(error: BaseException) -> BaseException | None:
    """Print ``error`` as Python does at the end of a process; return it unless its exit code is 0."""
    strip_labkit_frames(error)
    as_main.show_error(error)
    return error if exit_code(error) else None


def show_reports(errors: Iterable[BaseException]) -> None:
    """Print reports on ranks, with the script's own lines."""
    for error in errors:
        strip_labkit_frames(error)
        fold_frames(error, is_installed_code, whole=True)
        sys.stderr.write("".join(traceback.format_exception(error)))
