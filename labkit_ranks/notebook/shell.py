"""Adapt IPython while ranks run: displays, names, magics and errors belong to their rank."""

from __future__ import annotations

import contextvars
import os
import pdb
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from labkit.base.language import say
from labkit.base.numbers import plural
from labkit.base.ours import frames_of_threads, is_our_module
from labkit.base.patches import Patch, Patches
from simgpu.tracebacks import fold_frames

from ..calls.call import format_place
from ..rank.own_modules import is_installed_code
from ..rank.rank import Rank, current_thread_rank
from ..threads.world import World
from .output import RankOutput


def current_shell() -> Any:
    """Return the running IPython shell; None outside of IPython, which is not imported."""
    core = sys.modules.get("IPython.core.interactiveshell")
    running = core is not None and core.InteractiveShell.initialized()
    return core.InteractiveShell.instance() if core and running else None


def display_forms(value: object) -> dict[str, Any]:
    """Return ``value`` in all forms that a notebook can show; outside of IPython, as its repr."""
    shell = current_shell()
    if shell is None:
        return {"text/plain": repr(value)}
    bundle: dict[str, Any] = shell.display_formatter.format(value)[0]
    return bundle


class RankDisplay:
    """A publisher of displays that labels a rank's displays."""

    def __init__(self, real: Any, lines: RankOutput) -> None:
        self.real, self._lines = real, lines

    def publish(self, data: dict[str, Any], metadata: Any = None, *args: Any, **kwargs: Any) -> None:
        """Publish ``data``. A rank's display comes below a label, and a rank's plain text is printed."""
        rank = current_thread_rank()
        if rank is not None and not kwargs.get("update"):
            if set(data) <= {"text/plain"} and not kwargs.get("transient"):
                self._lines.write(rank.number, "stdout", data.get("text/plain", "") + "\n")
                return
            self._lines.write(rank.number, "stdout", "\n")
        self.real.publish(data, metadata, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@contextmanager
def label_displays(shell: Any, lines: RankOutput, world: World) -> Iterator[None]:
    """Label ranks' displays, and let magics in a rank use the rank's names, while the context is open."""
    publisher = shell.display_pub
    shell.display_pub = RankDisplay(publisher, lines)
    kind = type(shell)
    inherited = getattr(kind, "user_ns", None)

    def user_ns(self: Any) -> Any:
        rank = current_thread_rank()
        if rank is not None:
            return rank.main.__dict__
        return inherited.__get__(self) if isinstance(inherited, property) else vars(self)["user_ns"]

    def set_user_ns(self: Any, names: Any) -> None:
        if isinstance(inherited, property) and inherited.fset is not None:
            inherited.fset(self, names)
        else:
            vars(self)["user_ns"] = names

    patches = [Patch(kind, "user_ns", property(user_ns, set_user_ns))]
    if hasattr(shell, "kernel"):
        _breakpoint.before, _set_trace.before = sys.breakpointhook, pdb.set_trace
        patches += [Patch(sys, "breakpointhook", _breakpoint), Patch(pdb, "set_trace", _set_trace)]
    try:
        with Patches(lambda: patches), _interruptible(world):
            yield
    finally:
        shell.display_pub = publisher


class _Breakpoint:
    """``breakpoint()`` and ``pdb.set_trace()`` in a rank: pdb through the kernel, while the other ranks wait.

    A kernel's own hook belongs to JupyterLab's debugger and does nothing while the debugger is off.
    """

    def __init__(self, before: Callable[..., Any]) -> None:
        self.before = before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_thread_rank() is None:
            return self.before(*args, **kwargs)
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **kwargs)

        class Debugger(pdb.Pdb):  # IPython has replaced pdb.Pdb
            def stop_here(self, frame: FrameType) -> bool:
                # Don't stop in labkit after the user steps over the last line of the cell.
                ours = is_our_module(frame.f_globals.get("__name__"))
                return not ours and super().stop_here(frame)

        Debugger().set_trace(sys._getframe(1))
        return None


# Shared by all runs, because ranks keep their hooks.
_breakpoint, _set_trace = _Breakpoint(sys.breakpointhook), _Breakpoint(pdb.set_trace)


@contextmanager
def _interruptible(world: World) -> Iterator[None]:
    """Show where each rank was if the kernel is interrupted while the context is open."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    where: list[str] = []

    def handle_interrupt(number: int, frame: FrameType | None) -> None:
        where[:] = rank_places(world)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, handle_interrupt)
    try:
        yield
    except KeyboardInterrupt as error:
        text = "\n".join(["KeyboardInterrupt", *where])
        error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def rank_places(world: World) -> list[str]:
    """Return the current line of each rank: ``"rank 2: Cell In[5]:7 in step"``."""
    frames, lines = frames_of_threads(), []
    for rank in world.ranks:
        frame = frames.get(rank.thread)
        while frame is not None and frame.f_globals.get("__name__") != "__main__":
            frame = frame.f_back
        if frame is not None:  # the innermost line of the user's code
            lines.append(f"{rank.name}: {format_place(frame.f_code, frame.f_lineno)}")
        elif rank.task is None or rank.task.is_over:
            lines.append(say(en=f"{rank.name} has ended", zh=f"{rank.name} 已经结束"))
        else:
            lines.append(say(en=f"{rank.name} has not begun", zh=f"{rank.name} 还没有开始"))
    return lines


def render_error(error: BaseException) -> None:
    """Let IPython show a rank's ``error`` with the rank's own frames only."""
    shell = current_shell()
    if shell is None or isinstance(error, SyntaxError):
        return
    # For labkit's own reports the rank's lines are enough: frames of torch would only show where it waited.
    count = fold_frames(error, is_installed_code, whole=hasattr(error, "report"))
    if count and not hasattr(error, "report"):
        en = f"({plural(count, 'frame')} of installed packages left out; LABKIT_TRACEBACK=full shows all.)"
        zh = f"（省略了 {count} 层已安装的包的调用；设置 LABKIT_TRACEBACK=full 可以看到全部。）"
        error.add_note(say(en=en, zh=zh))
    exc_info = type(error), error, error.__traceback__
    error._render_traceback_ = lambda: shell.InteractiveTB.structured_traceback(*exc_info)  # type: ignore[attr-defined]


def show_figures() -> None:
    """Show the rank's pyplot figures, as IPython does at the end of a cell."""
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    if inline is None:
        return
    import matplotlib
    from matplotlib._pylab_helpers import Gcf

    if matplotlib.is_interactive() and "inline" in matplotlib.get_backend() and Gcf.get_all_fig_managers():
        inline.show(inline.InlineBackend.instance().close_figures)


def bind_to_cell(function: Callable[[Rank], Any]) -> Callable[[Rank], Any]:
    """Bind ``function`` to the running cell, so that displays and figures appear there.

    Kernels find a message's cell by context variables, and a rank's thread outlives the cell.
    """
    if current_shell() is None:
        return function
    context = contextvars.copy_context()

    def part(rank: Rank) -> Any:
        __tracebackhide__ = True
        return context.copy().run(_run_with_figures, function, rank)

    return part


def _run_with_figures(function: Callable[[Rank], Any], rank: Rank) -> Any:
    __tracebackhide__ = True
    tracer = sys.gettrace()
    try:
        result = function(rank)
    finally:
        sys.settrace(tracer)  # a debugger that was left at the cell's last line would stop in the next cell
    show_figures()
    return result
