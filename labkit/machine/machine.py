"""The simulated machine: several GPUs for a computer that has none, or one."""

from __future__ import annotations

import threading
import weakref
from operator import index as whole

import torch
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)

from .. import turns
from ..footprint import Occupancy
from ..language import say
from .gpu import Gpu, format_bytes, parse_bytes
from .install import install
from .mode import MachineMode
from .patches import Patches
from .random import DeviceRandom
from .real_gpus import RealGpus, release
from .streams import Current
from .threads import share_one_arena
from .versions import warn_if_untried

_CUDA_ERROR = (
    "CUDA error: invalid device ordinal\n"
    "GPU device may be out of range, do you have enough GPUs?\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Device-side assertion tracking was not enabled by user."
)

# More GPUs than this are listed, not drawn.
_MOST_DRAWN = 64


class Machine:
    """A simulated machine, in use from its making until :meth:`close` (or the end of its ``with`` block).

    gpus       the simulated GPUs, a tuple.
    order      how replicas take turns: None (device order), "threads" (they race) or a tuple of numbers.
    backing    where the values really are: the CPU or one real GPU.
    """

    # What general() means by "where the inputs are", as opposed to None, the host.
    AS_INPUT = object()

    def __init__(self, gpus, memory="16 GiB", backing="cpu", order=None) -> None:
        self.backing = torch.device(backing)
        self.order = order
        sizes = list(memory) if isinstance(memory, (list, tuple)) else [memory] * gpus
        capacities = [parse_bytes(size) for size in sizes]
        self.gpus = tuple(Gpu(index, capacity, self) for index, capacity in enumerate(capacities))
        self.random = DeviceRandom(self.gpus)
        self.mode = MachineMode(self)
        self.closed = False
        # Whether it was in use before: a machine that comes back keeps the current GPU.
        self.resumed = False
        self.current: Current
        self.stream_class: type
        self._patches = Patches()
        self._suspended: Machine | None = None
        self._entered = False
        self._turns: weakref.WeakValueDictionary[tuple[int, int], turns.Turns] = weakref.WeakValueDictionary()

    # What torch asks for.

    def gpu(self, index: int) -> Gpu:
        """The GPU with this number (or the current one, for a negative number), or CUDA's own error."""
        if not self.gpus:
            raise RuntimeError("No CUDA GPUs are available")
        if index is None or index < 0:
            index = self.current.index
        if index >= len(self.gpus):
            raise torch.AcceleratorError(_CUDA_ERROR)
        return self.gpus[index]

    def resolve(self, device) -> Gpu | None:
        """The GPU that ``device`` (a string, a number, a torch.device) means; None for any other device."""
        if isinstance(device, int) and not isinstance(device, bool):
            return self.gpu(device)
        device = torch.device(device)
        if device.type != "cuda":
            return None
        return self.gpu(self.current.index if device.index is None else device.index)

    def real(self, target: Gpu | None, device=None) -> torch.device:
        """Where the values of a tensor on ``target`` are; for the host, ``device`` itself (or the CPU)."""
        if target is not None:
            return self.backing
        return torch.device("cpu" if device is None else device)

    def entered(self) -> _Entered:
        """Context manager: inside, this thread sees the machine (it may already)."""
        return _Entered(self.mode)

    def turns_of(self, frame) -> turns.Turns:
        """The turns that the threads started from ``frame`` take.

        The threads themselves keep their turns alive, so that they end with the call that started them.
        """
        caller = threading.get_ident(), id(frame)
        known = self._turns.get(caller)
        if known is None:
            known = self._turns[caller] = turns.Turns(self.order)
        return known

    # What users ask for.

    def memory(self, gpu: int) -> int:
        """Bytes allocated on this GPU, as ``torch.cuda.memory_allocated`` counts them."""
        if not 0 <= whole(gpu) < len(self.gpus):
            raise ValueError(f"gpu must be from 0 to {len(self.gpus) - 1}, got {gpu}")
        return self.gpus[gpu].live()

    def close(self) -> None:
        """Give torch back as it was. Tensors on the GPUs stay usable as plain tensors on the host."""
        self._end()
        if _active is None:
            _forget_default_device()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        if _active is self:
            _deactivate()
        if self._suspended is not None and not self._entered:
            self._suspended.close()
            self._suspended = None

    def stale_text(self, gpu: Gpu) -> str:
        """What to say of a tensor on ``gpu`` while this machine is not the one in use."""
        used = _active.describe() if _active is not None else "none"
        there = _active is None or gpu.index < len(_active.gpus)
        return (
            f"a tensor is on {gpu.device} of {self.describe()}, which is not the machine in use ({used}): make "
            f"the tensor (or the model) again, or move it with .cpu(){f' or .to({str(gpu.device)!r})' * there} first"
        )

    def program(self) -> str:
        """Python code that makes another machine like this one."""
        memory, order = [gpu.capacity for gpu in self.gpus], self.order
        return (
            f"import labkit; labkit.simulate({len(self.gpus)}, memory={memory}, "
            f"backing={str(self.backing)!r}, order={order!r})"
        )

    def describe(self) -> str:
        """``simulate(gpus=2)``, and whether it is closed."""
        return f"simulate(gpus={len(self.gpus)})" + (", closed" if self.closed else "")

    def __enter__(self) -> Machine:
        if self.closed:
            raise RuntimeError(f"{self.describe()}: make a new machine")
        self._entered = True
        return self

    def __exit__(self, *exc_info) -> None:
        suspended, self._suspended = self._suspended, None
        self._entered = False
        self._end()
        if _active is None:
            if suspended is not None and not suspended.closed:
                _activate(suspended)
            else:
                _forget_default_device()

    def __repr__(self) -> str:
        if self.closed:
            return f"<{self.describe()}>"
        sizes = {gpu.capacity for gpu in self.gpus}
        if len(sizes) == 1:
            size = format_bytes(sizes.pop())
            each = say(en=f"{size} each", zh=f"每块 {size}")
        else:
            each = say(en="memory differs", zh="显存大小不一")
        count = len(self.gpus)
        lines = [
            say(en=f"{count} simulated GPU{'s' * (count != 1)}, {each}", zh=f"{count} 块模拟 GPU，{each}")
            if count
            else say(en="no GPU", zh="没有 GPU")
        ]
        lines += [
            f"  cuda:{gpu.index}  "
            + say(
                en=f"{format_bytes(gpu.live())} of {format_bytes(gpu.capacity)}",
                zh=f"已用 {format_bytes(gpu.live())} / {format_bytes(gpu.capacity)}",
            )
            for gpu in self.gpus
        ]
        return "\n".join(lines)

    def _repr_svg_(self) -> str | None:
        if self.closed or not 0 < len(self.gpus) <= _MOST_DRAWN:
            return None
        used, there = zip(*((gpu.live(), gpu.capacity) for gpu in self.gpus), strict=True)
        return Occupancy(used, there)._repr_svg_()


class _Entered:
    """Puts a mode on this thread's stack, unless it is there.

    It goes below the others: what is already there (``with torch.device(...)``) will take off the topmost.
    Only the default device must stay below it, where torch looks for it.
    """

    __slots__ = ("_mode", "_pushed")

    def __init__(self, mode) -> None:
        self._mode = mode
        self._pushed = False

    def __enter__(self) -> None:
        mode = self._mode
        for at in range(_len_torch_function_stack()):
            if _get_function_stack_at(at) is mode:
                return
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        above = []
        while (
            _len_torch_function_stack()
            and _get_function_stack_at(_len_torch_function_stack() - 1) is not default
        ):
            above.append(_pop_torch_function_stack())
        _push_on_torch_function_stack(mode)
        while above:
            _push_on_torch_function_stack(above.pop())
        self._pushed = True

    def __exit__(self, *exc_info) -> None:
        if self._pushed:
            _leave(self._mode)
            self._pushed = False


def _leave(mode) -> None:
    """Take ``mode`` off this thread's stack, wherever in it it is."""
    above = []
    while _len_torch_function_stack():
        top = _pop_torch_function_stack()
        if top is mode:
            break
        above.append(top)
    while above:
        _push_on_torch_function_stack(above.pop())


_active: Machine | None = None


def machine_in_use() -> Machine | None:
    """The machine that torch sees now."""
    return _active


def _activate(machine: Machine) -> None:
    global _active
    if machine.order != "threads":
        share_one_arena()
    if machine.backing.type == "cuda":
        torch.cuda.init()  # the real one, before torch's own functions are answered by the machine
    machine.random.begin(machine.backing)
    patches = machine._patches
    try:
        install(machine, patches, machine_in_use)
    except BaseException:
        patches.undo()
        raise
    machine.resumed = True
    _active = machine
    turns.in_device_order = machine.order is None
    for gpu in machine.gpus:
        gpu.resume()
    machine.entered().__enter__()


def _deactivate() -> None:
    global _active
    machine, _active = _active, None
    turns.in_device_order = False
    # A thread that is still running may have the mode on its stack: it must do nothing from now on.
    machine._patches.undo()
    for gpu in machine.gpus:
        gpu.suspend()
    _leave(machine.mode)
    if machine.closed:
        machine.mode.retire()


def _forget_default_device() -> None:
    """Undo a ``torch.set_default_device`` to a GPU that is gone: torch could make no tensor any more."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if context is not None and context.device.type == "cuda" and not torch.cuda.is_available():
        torch.set_default_device(None)


def simulate(gpus: int = 8, *, memory="16 GiB", backing="cpu", order=None) -> Machine:
    """From now on, torch sees ``gpus`` simulated GPUs.

    Works as a plain call (``close()`` ends it, or the next call) and as a context manager.

    gpus      how many, at least 1.
    memory    of each GPU: bytes, text like "16 GiB", or a list of these, one for each GPU.
    backing   where values are really kept: "cpu", or one real GPU, "cuda:0".
    order     of the replicas of a data-parallel call: None runs them in device order, so that what they
              print is the same every time; "threads" lets them race as on real GPUs; a list such as
              [2, 0, 1] runs them in that order.

    Raises TypeError or ValueError, naming the argument, before anything is changed.
    """
    _check_gpus(gpus)
    if isinstance(memory, (list, tuple)) and len(memory) != gpus:
        raise ValueError(
            f"memory must have one entry for each of the {gpus} GPUs, got {len(memory)}: {memory!r}"
        )
    if isinstance(order, (list, tuple)):
        order = tuple(order)
        if sorted(order) != list(range(gpus)):
            raise ValueError(f"order must name each of the {gpus} GPUs once, got {list(order)}")
    elif order not in (None, "threads"):
        raise ValueError(f"order must be None, 'threads' or a list of GPU numbers, got {order!r}")
    _check_backing(backing)
    warn_if_untried(torch.__version__)
    return _replace(Machine(whole(gpus), memory, backing, order))


def use_gpus(gpus: int) -> Machine | RealGpus:
    """``gpus`` GPUs (≥ 0): real ones if the computer has enough, else simulated ones.

    With one real GPU, the simulated ones keep their values on it; with none, on the CPU.
    """
    if gpus != 0 or isinstance(gpus, bool):
        _check_gpus(gpus)
    if _active is not None:
        _active.close()
    release()
    have = torch.cuda.device_count()
    if have >= gpus and have > 0 and gpus > 0:
        return RealGpus(gpus)
    return _replace(Machine(gpus, backing="cuda:0" if have and gpus else "cpu"))


def _replace(machine: Machine) -> Machine:
    release()
    previous = _active
    if previous is not None:
        _deactivate()
        if not previous._entered and previous._suspended is not None:
            # A plain call after a plain call: only the last one before a with block can come back.
            previous._suspended.close()
            previous._suspended = None
    machine._suspended = previous
    _activate(machine)
    return machine


def _check_gpus(gpus) -> None:
    try:
        count = whole(gpus) if not isinstance(gpus, bool) else None
    except TypeError:
        count = None
    if count is None:
        raise TypeError(f"gpus must be a whole number of at least 1, got {gpus!r} ({type(gpus).__name__})")
    if count < 1:
        raise ValueError(f"gpus must be at least 1, got {count}: a machine without GPUs needs no simulation")
    if count > 1024:
        raise ValueError(f"gpus must be at most 1024, got {count}")


def _check_backing(backing) -> None:
    try:
        device = torch.device(backing)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"backing must be 'cpu' or a real GPU like 'cuda:0', got {backing!r}") from error
    if device.type == "cpu":
        return
    with _without_machine():
        if device.type != "cuda" or (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(
                f"backing={backing!r}: this computer has {torch.cuda.device_count()} real GPUs; "
                "use backing='cpu'"
            )


class _without_machine:
    """Inside, torch is as it really is."""

    def __enter__(self):
        self._machine = _active
        if _active is not None:
            _deactivate()

    def __exit__(self, *exc_info):
        if self._machine is not None:
            _activate(self._machine)
