"""Hooks by which features of torch take part in the work of the machine's core.

The core calls the functions in these lists; a module of :mod:`.features` adds its own when imported. With empty lists,
the machine does what an ordinary training script needs. Handlers of single functions are in :mod:`.handlers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

from labkit.base.patches import Patch

F = TypeVar("F", bound=Callable[..., Any])


class Hook(list[F], Generic[F]):
    """List of the functions to call at one place."""

    def add(self, function: F) -> F:
        """Add ``function``; usable as a decorator."""
        self.append(function)
        return function

    @contextmanager
    def adding(self, function: F) -> Iterator[None]:
        """Add ``function`` for the time of a ``with`` block."""
        self.append(function)
        try:
            yield
        finally:
            self.remove(function)


# (machine) -> the patches to torch while the machine is in use.
patches: Hook[Callable[[Any], Iterable[Patch]]] = Hook()
# (machine) -> an object whose methods replace the functions of ``torch._C`` of the same names.
torch_c_answers: Hook[Callable[[Any], object]] = Hook()
# (): called before a machine opens; raises where it must not.
machine_opening: Hook[Callable[[], object]] = Hook()
# (machine): called when the machine comes into use, for changes that stay for the process.
machine_opened: Hook[Callable[[Any], object]] = Hook()
# (function of torch) -> whether a call on mixed devices checks and places its tensors itself.
places_itself: Hook[Callable[[Any], bool]] = Hook()
# (function, args, kwargs, error, gpu) -> the result of a call that the CPU's kernels failed, or raise CUDA's error.
# After NotImplemented the next function is asked; in the end the error itself is raised.
call_failed: Hook[Callable[[Any, tuple[Any, ...], dict[str, Any], Exception, Any], Any]] = Hook()
# (machine, outputs) -> a context manager around a backward pass from ``outputs``.
backward_contexts: Hook[Callable[[Any, Any], AbstractContextManager[Any]]] = Hook()
# (machine): called before calls in half precision.
half_precision: Hook[Callable[[Any], object]] = Hook()
# (machine): called when the host waits for a GPU.
host_waited: Hook[Callable[[Any], object]] = Hook()
# (machine): the same for waits that no operator makes: events, synchronize(), copies without blocking.
device_waited: Hook[Callable[[Any], object]] = Hook()
# (machine): called when the host waits for all streams of a GPU, after ``device_waited``.
synchronized: Hook[Callable[[Any], object]] = Hook()
# (machine) -> whether every wait and operator must be reported now.
is_followed: Hook[Callable[[Any], bool]] = Hook()
# (machine): called for each operator on a GPU, while ``is_followed``.
operator_ran: Hook[Callable[[Any], object]] = Hook()
# (event, stream; None: the current one): called when an event is recorded, or waited for.
event_recorded: Hook[Callable[[Any, Any], object]] = Hook()
event_awaited: Hook[Callable[[Any, Any], object]] = Hook()
# (gpu, storage): called when a storage is put on a GPU.
storage_taken: Hook[Callable[[Any, Any], object]] = Hook()
# (): called when Python meets a tensor that C++ made.
tensor_met: Hook[Callable[[], object]] = Hook()
# () -> whether CUDA is initialized for this thread; None: ask the machine.
cuda_initialized: Hook[Callable[[], bool | None]] = Hook()
# (class of tensors or of dispatch modes): called when one is defined while a machine is in use.
class_made: Hook[Callable[[type], object]] = Hook()
