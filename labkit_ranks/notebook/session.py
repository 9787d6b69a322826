"""Ranks that live from call to call: ``labkit.ranks(4)``, which also runs the cells of ``%%ranks 4``.

Between calls each rank keeps its namespace, process group and current GPU, as a process would.
"""

from __future__ import annotations

import builtins
import sys
import traceback
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from html import escape
from typing import Any

import torch
import torch.distributed as dist

from labkit.base.language import say, wrong
from labkit.base.numbers import MOST_GPUS, integer, must, plural
from labkit.base.patches import Patch, Patches
from labkit.base.units import parse_bytes
from labkit.cost.hardware import Accelerator
from labkit.trace import emitting
from labkit.trace.trace import Trace
from labkit.turns import Deadlock
from simgpu.children.gpu_models import with_model
from simgpu.tracebacks import strip_labkit_frames

from ..planning.timing import run_by_times
from ..rank.rank import Rank, current_thread_rank, refuse_in_rank
from ..rank.system_calls import run_exit_functions
from ..threads.world import RanksFailed, World
from . import shell as notebook
from .cell import RankCell
from .output import RankOutput, RankStream
from .results import Results
from .tables import Memory

# The initial names of each rank.
GIVEN = ("rank", "local_rank", "world_size", "device")

_open: Session | None = None
_last_size: int | None = None


def current() -> Session | None:
    """Return the open session; close one that lost its machine, as by ``use_gpus`` in a lesson's first cell."""
    if _open is not None and _open.has_lost_machine:
        _open.close()
    return _open


def last_size() -> int | None:
    """Return the number of ranks of the last session."""
    return _last_size


def ranks(
    size: int | None = None, *, nodes: int = 1, memory: str | int | Sequence[str | int] | None = None,
    gpu_model: str | None = None,
) -> Session:  # fmt: skip
    """Start ``size`` ranks of ``torch.distributed`` in this process, each with a simulated GPU: a :class:`Session`.

    Works as a plain call (``close()`` or the next call ends the session) and as a context manager. Without ``size``,
    return the open session, including that of ``%%ranks``.

    size     the number of ranks, 1 to 1024.
    nodes    the number of simulated computers, with equal numbers of ranks.
    memory   of each GPU: bytes, text like "16 GiB", or a list with an entry for each GPU of a node; default: the memory
             of ``gpu_model``, or 16 GiB.
    gpu_model   the GPU that torch.cuda reports, as for ``labkit.simulate``.

    Raises TypeError or ValueError, naming the argument, before any change; RuntimeError without ``size`` and without an
    open session.
    """
    global _open, _last_size
    if size is None:
        if (now := current()) is None:
            en = "no ranks are open: labkit.ranks(4) or %%ranks 4 starts four"
            zh = "还没有启动 rank：labkit.ranks(4) 或 %%ranks 4 会启动四个"
            raise wrong(RuntimeError, en=en, zh=zh)
        return now
    made = Session(size, nodes=nodes, memory=memory, gpu_model=gpu_model)
    _open, _last_size = made, made.size
    return made


def check_ranks(
    size: Any, *, nodes: Any = 1, memory: Any = None, gpu_model: str | None = None
) -> tuple[int, int, Any]:
    """Return the checked numbers of ranks and nodes, and the memory of each GPU.

    Raises TypeError or ValueError, naming the argument.
    """
    size, nodes = integer("size", size, 1, MOST_GPUS), integer("nodes", nodes, 1, MOST_GPUS)
    if size % nodes:
        zh = f"能整除 size（{size}）"
        raise ValueError(must("nodes", nodes, en=f"a divisor of size, {size}", zh=zh))
    each = size // nodes
    if isinstance(memory, (list, tuple)) and len(memory) != each:
        en = f"memory must have one entry for each of a node's {each} GPUs, got {len(memory)}: {memory!r}"
        zh = f"memory 必须给一个节点的 {each} 块 GPU 各写一项，现在有 {len(memory)} 项：{memory!r}"
        raise wrong(en=en, zh=zh)
    limits = with_model(memory, gpu_model)[0]
    for amount in memory if isinstance(memory, (list, tuple)) else [limits]:
        parse_bytes(amount)  # type: ignore[arg-type]  # raises for wrong types
    return size, nodes, limits


class Session:
    """Ranks that live from call to call, until :meth:`close` or the end of the ``with`` block.

    size, nodes   the numbers of ranks and of simulated computers.
    limits        the requested memory of each GPU; ``gpu_model`` is the GPU that torch reports.
    times         the GPU whose speed the ranks' clocks use (:mod:`..planning.timing`); None: this computer's.
    trace         the collectives and copies of the last :meth:`run` or :meth:`execute`, by rank.

    ``session[2]`` is the namespace of rank 2: read ``session[2]["x"]``, or set ``session[2]["x"] = 1``.
    """

    def __init__(
        self, size: int, *, nodes: int = 1, memory: str | int | Sequence[str | int] | None = None,
        gpu_model: str | None = None,
    ) -> None:  # fmt: skip
        global _open
        self.size, self.nodes, self.limits = check_ranks(
            size, nodes=nodes, memory=memory, gpu_model=gpu_model
        )
        self.gpu_model = gpu_model
        if _open is not None:
            _open.close()
        self.trace = Trace()
        self.times: Accelerator | None = None
        self._streams = {name: RankStream(name, getattr(sys, name)) for name in ("stdout", "stderr")}
        self._cells = 0
        self._start()

    # For users.

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Results:
        """Call ``function(*args, **kwargs)`` in each rank; return the results, a list that shows itself side by side.

        All ranks share the arguments, tensors too. A rank's error is raised here with a note that names the rank; the
        other ranks are ended where they wait.
        """
        if not callable(function):
            raise TypeError(must("function", function, en="callable", zh="是可以调用的", typed=True))
        return self._results(self._run(lambda rank: function(*args, **kwargs)))

    def execute(self, code: str, *, name: str | None = None) -> Results | None:
        """Run Python ``code`` in the namespace of each rank, as ``%%ranks`` runs a cell.

        Return the values of the last expression, a list that shows itself side by side; None without values.

        name   the file name of the code in tracebacks.
        """
        if not isinstance(code, str):
            en, zh = "Python source, a str", "是 Python 代码（str）"
            raise TypeError(must("code", code, en=en, zh=zh, typed=True))
        self._cells += 1
        cell = RankCell(code, name or f"<ranks {self._cells}>")

        def part(rank: Rank) -> Any:
            __tracebackhide__ = True  # of debuggers
            return cell.run(rank.main.__dict__)

        values = self._run(part)
        return self._results(values) if any(value is not None for value in values) else None

    def __getitem__(self, rank: int) -> Namespace:
        return Namespace(self._alive().ranks[integer("rank", rank, 0, self.size - 1)])

    def __len__(self) -> int:
        return self.size

    @property
    def memory(self) -> Memory:
        """The bytes on each rank's GPU: in use, and at the peak since the beginning or the last reset."""
        return Memory.read(self._alive().ranks)

    @property
    def closed(self) -> bool:
        """Whether the ranks have ended."""
        return self._world.closed

    @property
    def has_lost_machine(self) -> bool:
        """Whether the simulated machine was closed under the ranks."""
        return not self.closed and self._world.machine.closed

    def restart(self) -> Session:
        """Restart with empty namespaces, a new process group and empty GPUs; return the session."""
        global _open
        self.close()
        self._start()
        _open = self
        return self

    def close(self) -> None:
        """Run each rank's ``atexit`` functions, end the ranks, and restore torch."""
        global _open
        if not self._world.closed:
            refuse_in_rank()
            if any(rank.state.exit_functions for rank in self._world.ranks):
                with self._stage(self._world), suppress(RanksFailed):  # errors there change nothing
                    self._world.run(lambda rank: run_exit_functions(rank.state, traceback.print_exception))
            self._world.machine.remove_patches(self._patches)
            self._world.close()
        if _open is self:
            _open = None

    def __enter__(self) -> Session:
        self._alive()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # Internals.

    def _start(self) -> None:
        self._world = World(self.size, nodes=self.nodes, memory=self.limits, gpu_model=self.gpu_model)
        self._patches = Patches(self._patches_of_init)
        # Rank -> the process group made for the rank, until the rank makes another.
        self._groups: dict[int, Any] = {}
        self._world.machine.add_patches(self._patches)
        try:
            with self._stage(self._world):
                self._world.run(self._begin)
        except BaseException:
            self.close()
            raise

    def _begin(self, rank: Rank) -> None:
        """Choose the GPU and make a process group, as a script does in its first lines."""
        torch.cuda.set_device(rank.local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank.local))
        self._groups[rank.number] = dist.group.WORLD
        values = (rank.number, rank.local, rank.size, torch.device("cuda", rank.local))
        rank.main.__dict__.update(zip(GIVEN, values, strict=True))

    def _patches_of_init(self) -> Iterator[Patch]:
        """Let a rank's own ``init_process_group`` replace the group that was made for the rank."""

        def init_process_group(real: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            rank = current_thread_rank()
            ours = any(rank is one for one in self._world.ranks)  # not a rank of another world
            made = self._groups.pop(rank.number, None) if rank is not None and ours else None
            if made is not None and dist.group.WORLD is made:
                dist.destroy_process_group()
            real(*args, **kwargs)

        yield Patch.wrap(dist, "init_process_group", init_process_group)
        yield Patch.wrap(dist.distributed_c10d, "init_process_group", init_process_group)

    def _alive(self) -> World:
        if self._world.closed:
            en = "these ranks are closed: .restart() starts them anew"
            zh = "这组 rank 已经关闭：用 .restart() 重新启动"
            raise wrong(RuntimeError, en=en, zh=zh)
        return self._world

    def run_in_each(self, function: Callable[[Rank], Any], *, to_end: bool = False) -> list[Any]:
        """Call ``function(rank)`` in each rank, and record a trace. Raises RanksFailed with the ranks' errors.

        to_end   as for :meth:`..threads.world.World.run`.
        """
        world = self._alive()
        refuse_in_rank()
        with self._stage(world), run_by_times(self.times) as by_times:
            recorded = emitting.begin()
            try:
                return world.run(by_times(notebook.bind_to_cell(function)), to_end=to_end)
            finally:
                emitting.end(recorded)
                self.trace = recorded

    def _run(self, function: Callable[[Rank], Any]) -> list[Any]:
        __tracebackhide__ = True  # of debuggers
        try:
            return self.run_in_each(function)
        except RanksFailed as error:
            failed = error
        raise self._error_of_rank(failed)

    def _error_of_rank(self, failed: RanksFailed) -> BaseException:
        """Return the first rank's error, with its own traceback and a note that names the rank."""
        error = failed.error
        strip_labkit_frames(error)
        if self.size > 1 and not isinstance(error, Deadlock):  # a Deadlock names all ranks
            en = f"(Rank {failed.rank} of {self.size}; the others were ended where they waited.)"
            zh = f"（这是 rank {failed.rank} 的错误，共 {self.size} 个 rank；其余的已在等待处中止。）"
            error.add_note(say(en=en, zh=zh))
        notebook.render_error(error)
        return error

    @contextmanager
    def _stage(self, world: World) -> Iterator[None]:
        """Label the output, displays and prompts of running ranks."""
        real = {name: getattr(sys, name) for name in self._streams}
        shell = notebook.current_shell()
        lines = RankOutput(self.size, real)
        ask = builtins.input

        def ask_for_rank(prompt: object = "", /) -> str:
            rank = current_thread_rank()
            if rank is None:
                return ask(prompt)
            lines.interrupt()
            sys.stdout, ours = real["stdout"], sys.stdout  # where ``input`` writes its prompt
            try:
                return ask(f"{lines.label(rank.number)}{prompt}")
            finally:
                sys.stdout = ours

        with ExitStack() as stack:
            for name, stream in self._streams.items():
                stream.real, stream.lines = real[name], lines
                setattr(sys, name, stream)
                stack.callback(setattr, sys, name, real[name])
            builtins.input = ask_for_rank
            stack.callback(setattr, builtins, "input", ask)
            stack.callback(lines.end)
            if shell is not None:
                stack.enter_context(notebook.label_displays(shell, lines, world))
            yield

    def _results(self, values: list[Any]) -> Results:
        world = self._world

        def forms(form: Callable[[Any], Any]) -> list[Any]:
            # Ranks format their own values, because each sees only the GPUs of its node.
            if world.closed or current_thread_rank() is not None:
                return [form(value) for value in values]
            with self._stage(world):
                return world.run(lambda rank: form(values[rank.number]))

        return Results(values, [rank.local for rank in world.ranks], forms)

    def __repr__(self) -> str:
        if self.closed:
            return say(en=f"{self.size} ranks, closed", zh=f"{self.size} 个 rank，已关闭")
        return f"{self._head()}\n{self.memory!r}"

    def _repr_html_(self) -> str | None:
        return None if self.closed else f"<div>{escape(self._head())}</div>{self.memory._repr_html_()}"

    def _head(self) -> str:
        on = say(en=f" on {self.nodes} nodes", zh=f"，分布在 {self.nodes} 个节点上") if self.nodes > 1 else ""
        en = f"{plural(self.size, 'rank')}{on}, a simulated GPU for each"
        return say(en=en, zh=f"{self.size} 个 rank{on}，每个一块模拟 GPU")


class Namespace(UserDict[str, Any]):
    """The names in a rank's ``__main__``, without names like ``__name__``."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self.data = rank, rank.main.__dict__

    def __missing__(self, name: str) -> Any:
        en = f"rank {self._rank.number} has no name {name!r}"
        raise wrong(KeyError, en=en, zh=f"rank {self._rank.number} 里没有名字 {name!r}")

    def __delitem__(self, name: str) -> None:
        self[name]
        del self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.data if not (name.startswith("__") and name.endswith("__"))])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<rank {self._rank.number}: {', '.join(self)}>"
