"""The simulated machine: GPUs, answers for torch, opening and closing."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from labkit.base.language import say, wrong
from labkit.base.numbers import integer, plural
from labkit.base.patches import Patches
from labkit.base.units import localized_bytes, parse_bytes
from labkit.plans.footprint import Occupancy

from . import features as features  # they register themselves
from . import hooks
from .children.environment import VISIBLE, MachineDescription
from .children.gpu_models import SIMULATED, with_model
from .ops.mode import MachineMode
from .stack import ModeEntered, take_off_stack
from .state.current_machine import machine_in_use, set_machine_in_use
from .state.errors import cuda_error
from .state.gpu import Gpu, TheMachine
from .state.random import DeviceRandom
from .state.streams import Current
from .torch_api.table import prepare_process, table

# More GPUs than this are listed, not drawn.
_MOST_DRAWN = 64


class Machine:
    """A simulated machine, in use from its making until :meth:`close` (or the end of its ``with`` block).

    gpus          the simulated GPUs, a tuple.
    order         how replicas take turns: None (device order), "threads" (they race) or a tuple of numbers.
    model         the GPU model.
    numbers       physical numbers of the GPUs, which differ if CUDA_VISIBLE_DEVICES hides or reorders some.
    description   text of the whole machine for child processes (:mod:`simgpu.children.environment`).
    """

    def __init__(
        self,
        gpus: int,
        memory: str | int | Sequence[str | int] | None = None,
        order: str | tuple[int, ...] | None = None,
        *,
        gpu_model: str | None = None,
        numbers: Sequence[int] | None = None,
        description: str | None = None,
    ) -> None:
        self.order = order
        size, self.model = with_model(memory, gpu_model)
        sizes: Any = size if isinstance(size, (list, tuple)) else [size] * gpus
        capacities = [parse_bytes(size) for size in sizes]
        self.gpus = tuple(Gpu(index, capacity, self) for index, capacity in enumerate(capacities))
        self.random = DeviceRandom(self.gpus)
        self.mode = MachineMode(self)
        # Makes a context manager inside which this thread sees the machine.
        self.use_in_thread = partial(ModeEntered, self.mode)
        self.current = Current()
        self.stream_ids: Iterator[int] = itertools.count(32)  # CUDA's pools of streams begin there too
        self.closed = False
        self.chosen: set[int] = set()  # numbers of the GPUs chosen by torch.cuda.set_device and its like
        self.numbers = tuple(range(gpus) if numbers is None else numbers)
        self.description = self._describe_for_children().text() if description is None else description
        self._patches = Patches(lambda: table(self))
        self._layers: list[Patches] = []
        self._in_block = False
        self.at_block_end: Callable[[], object] | None = None  # restores real GPUs

    # For the functions that replace torch's.

    def has_initialized_cuda(self) -> bool:
        """Whether this process uses CUDA: a GPU was chosen, or holds a tensor."""
        answers = [answer for ask in hooks.cuda_initialized if (answer := ask()) is not None]
        return answers[0] if answers else bool(self.chosen) or any(gpu.marks for gpu in self.gpus)

    def gpu(self, index: int | None) -> Gpu:
        """Return GPU ``index`` (the current one for None or a negative number), or raise CUDA's own error."""
        if not self.gpus:
            raise RuntimeError("No CUDA GPUs are available")
        if index is None or index < 0:
            index = self.current.index
        if index >= len(self.gpus):
            raise cuda_error(101, "InvalidDevice", "invalid device ordinal")
        return self.gpus[index]

    def resolve(self, device: int | str | torch.device) -> Gpu | None:
        """Return the GPU for ``device`` (a string, a number, a torch.device); None for other devices."""
        if isinstance(device, int) and not isinstance(device, bool):
            return self.gpu(device)
        device = torch.device(device)
        return self.gpu(device.index) if device.type == "cuda" else None

    def real(self, target: Gpu | None, device: Any = None) -> torch.device:
        """Return the real device for values on ``target``: the CPU; for None (the host), ``device`` or the CPU."""
        return torch.device("cpu" if target is not None or device is None else device)

    # For users.

    def memory(self, gpu: int) -> int:
        """Return the bytes allocated on GPU number ``gpu``, as ``torch.cuda.memory_allocated`` does."""
        return self.gpus[integer("gpu", gpu, 0, len(self.gpus) - 1)].live()

    def open(self) -> Machine:
        """Replace the machine in use. The end of a ``with`` block restores the previous one."""
        for check in hooks.machine_opening:
            check()
        with _changing:
            if _opened and not _opened[-1]._in_block:
                _end_machines_without_block_below(len(_opened) - 1)  # only the last one can come back
            _opened.append(self)
            try:
                _activate_last_opened()
            except BaseException:
                _opened.remove(self)
                self._end()
                _activate_last_opened()
                raise
        return self

    def close(self) -> None:
        """Restore torch. Tensors on the GPUs stay usable as plain tensors on the host."""
        with _changing:
            if self in _opened and not self._in_block:
                # A call of simulate() outside ``with`` replaced the machines below, so nothing restores them.
                _end_machines_without_block_below(_opened.index(self))
                _opened.remove(self)
            self._end()
            _activate_last_opened()

    def __enter__(self) -> Machine:
        with _changing:
            if self.closed:
                now = self.describe()
                raise wrong(RuntimeError, en=f"{now}: make a new machine", zh=f"{now}：请新建一台机器")
            self._in_block = True
            _opened.remove(self)
            _opened.append(self)
            _activate_last_opened()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with _changing:
            self._in_block = False
            if self not in _opened:
                return
            # End machines opened inside the block by simulate() without ``with``. A block above is another thread's.
            at = _opened.index(self)
            while at + 1 < len(_opened) and not _opened[at + 1]._in_block:
                _opened.pop(at + 1)._end()
            del _opened[at]
            self._end()
            _activate_last_opened()
            if self.at_block_end is not None and machine_in_use() is None:
                self.at_block_end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        if machine_in_use() is self:
            self.deactivate()
        take_off_stack(self.mode)  # needed if another thread has opened a machine since
        self.mode.retire()

    def activate(self) -> None:
        """Let torch see this machine."""
        prepare_process(self)
        self.random.begin()
        self._patches.put_in()
        set_machine_in_use(self)
        for gpu in self.gpus:
            gpu.resume()
        self.use_in_thread().__enter__()
        for layer in self._layers:
            layer.put_in()

    def deactivate(self) -> None:
        """Restore torch as it really is."""
        for layer in reversed(self._layers):
            layer.take_out()
        set_machine_in_use(None)
        self._patches.take_out()
        for gpu in self.gpus:
            gpu.suspend()
        take_off_stack(self.mode)

    def add_patches(self, patches: Patches) -> None:
        """Apply ``patches`` on top of the machine's own, now and whenever the machine comes back into use."""
        if machine_in_use() is self:
            patches.put_in()
        self._layers.append(patches)

    def remove_patches(self, patches: Patches) -> None:
        """Undo :meth:`add_patches`; do nothing if that raised."""
        if patches not in self._layers:
            return
        at = self._layers.index(patches)
        above = self._layers[at + 1 :]
        del self._layers[at]
        if machine_in_use() is self:
            for one in (*reversed(above), patches):
                one.take_out()
            for one in above:  # again, because they wrap what they replace
                one.put_in()

    def stale_text(self, gpu: Gpu) -> str:
        """Return the error text for a tensor on ``gpu`` while another machine, or none, is in use."""
        now = machine_in_use()
        used = now.describe() if now is not None else say(en="none", zh="没有")
        move = [".cpu()"]
        if now is None or gpu.index < len(now.gpus):
            move.append(f".to({str(gpu.device)!r})")
        return say(
            en=f"a tensor is on {gpu.device} of {self.describe()}, which is not the machine in use ({used}): make "
            f"the tensor (or the model) again (in a notebook, run the cells from `use_gpus` on), or move it with "
            f"{' or '.join(move)} first",
            zh=f"有张量在 {self.describe()} 的 {gpu.device} 上，而它不是正在使用的机器（{used}）："
            f"重新创建这个张量（或模型；在笔记本里，从写着 `use_gpus` 的单元格起重新运行），或者先用 "
            f"{' 或 '.join(move)} 移动它",
        )

    def _describe_for_children(self) -> MachineDescription:
        sizes = [gpu.capacity for gpu in self.gpus]
        return MachineDescription(
            len(sizes), sizes[0] if len(set(sizes)) == 1 else sizes,
            list(self.order) if isinstance(self.order, tuple) else self.order, os.environ.get(VISIBLE),
            None if self.model is SIMULATED else self.model.called,
        )  # fmt: skip

    def describe(self) -> str:
        """Return ``"simulate(gpus=2)"``, with ", closed" after :meth:`close`."""
        return f"simulate(gpus={len(self.gpus)})" + (say(en=", closed", zh="，已关闭") if self.closed else "")

    def __repr__(self) -> str:
        if self.closed:
            return f"<{self.describe()}>"
        if not self.gpus:
            return say(en="no GPU", zh="没有 GPU")
        sizes = {gpu.capacity for gpu in self.gpus}
        size, count = localized_bytes(min(sizes)), len(self.gpus)
        each = say(en=f"{size} each", zh=f"每块 {size}")
        if len(sizes) > 1:
            each = say(en="memory differs", zh="显存大小不一")
        lines = [say(en=f"{plural(count, 'simulated GPU')}, {each}", zh=f"{count} 块模拟 GPU，{each}")]
        for gpu in self.gpus:
            live, capacity = localized_bytes(gpu.live()), localized_bytes(gpu.capacity)
            lines.append(
                f"  cuda:{gpu.index}  " + say(en=f"{live} of {capacity}", zh=f"已用 {live} / {capacity}")
            )
        return "\n".join(lines)

    def _repr_svg_(self) -> str | None:
        if self.closed or not 0 < len(self.gpus) <= _MOST_DRAWN:
            return None
        used, capacities = zip(*((gpu.live(), gpu.capacity) for gpu in self.gpus), strict=True)
        return Occupancy(used, capacities)._repr_svg_()

    @staticmethod
    @contextmanager
    def open_extended(owner: TheMachine, gpus: int, memory: str | int) -> Iterator[Machine]:
        """Use a machine with the GPUs of ``owner`` (the one in use) and new ones, ``gpus`` in all, in a ``with`` block.

        Each GPU has ``memory``, replicas run in device order, and random states are separate.
        """
        machine = Machine(max(gpus, len(owner.gpus)), memory)
        with ExitStack() as back:
            for gpu, new in zip(owner.gpus, machine.gpus, strict=False):
                back.callback(gpu.lend(machine, new.capacity))
            machine.gpus = (*owner.gpus, *machine.gpus[len(owner.gpus) :])
            with machine.open():
                yield machine


# The open machines; torch sees the last. The others come back when the ``with`` blocks above end. A machine closed
# inside its own block keeps its place until the block ends, so that the previous one does not come back earlier.
_opened: list[Machine] = []
# Threads may open and close machines at the same time.
_changing = threading.RLock()


def _end_machines_without_block_below(at: int) -> None:
    """End the machines directly below ``_opened[at]`` that are in no ``with`` block."""
    while at and not _opened[at - 1]._in_block:
        at -= 1
        _opened.pop(at)._end()


def _activate_last_opened() -> None:
    """Make the last opened machine the one that torch sees; restore torch if it is closed or there is none."""
    last = _opened[-1] if _opened and not _opened[-1].closed else None
    now = machine_in_use()
    if now is not last:
        if now is not None:
            now.deactivate()
        if last is not None:
            last.activate()
    if last is None:
        _forget_default_device()
    else:
        last.use_in_thread().__enter__()  # another thread may have opened the machine


def _forget_default_device() -> None:
    """Undo ``torch.set_default_device`` to a GPU that is gone; otherwise torch could not make any tensor."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if context is not None and context.device.type == "cuda" and not torch.cuda.is_available():
        torch.set_default_device(None)
