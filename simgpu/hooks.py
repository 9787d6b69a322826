"""The places where a feature of torch takes part in the work of the machine's core.

The core asks the functions in these lists and knows nobody by name; a module of :mod:`.features` puts its own in when
it is imported. With a list empty, the machine does what an ordinary training script needs. What answers a single
function of torch is registered in :mod:`.handlers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

from labkit.base.patches import Patch

F = TypeVar("F", bound=Callable[..., Any])


class Hook(list[F], Generic[F]):
    """The functions that are asked at one place."""

    def add(self, function: F) -> F:
        """Put ``function`` in; usable as a decorator."""
        self.append(function)
        return function

    @contextmanager
    def adding(self, function: F) -> Iterator[None]:
        """Inside, ``function`` is in."""
        self.append(function)
        try:
            yield
        finally:
            self.remove(function)


# (machine) -> what is changed in torch while the machine is in use.
patches: Hook[Callable[[Any], Iterator[Patch]]] = Hook()
# (machine) -> an object whose methods answer the functions of ``torch._C`` of the same names.
torch_c_answers: Hook[Callable[[Any], object]] = Hook()
# (): a machine is to be opened; raises where none may be.
machine_opening: Hook[Callable[[], object]] = Hook()
# (machine): it comes into use; what stays for the process is done here.
machine_opened: Hook[Callable[[Any], object]] = Hook()
# (function of torch) -> whether its call checks and places its tensors itself, though their devices differ.
places_itself: Hook[Callable[[Any], bool]] = Hook()
# (function, args, kwargs, error, gpu) -> what a call on the GPU gives instead, or raise what CUDA raises. After
# NotImplemented the next one is asked, and in the end the error is raised.
call_failed: Hook[Callable[[Any, tuple[Any, ...], dict[str, Any], Exception, Any], Any]] = Hook()
# (machine, outputs) -> a context manager in which autograd's engine runs from these outputs on.
backward_contexts: Hook[Callable[[Any, Any], AbstractContextManager[Any]]] = Hook()
# (machine): calls in half precision may come.
half_precision: Hook[Callable[[Any], object]] = Hook()
# (machine): the host waits for a GPU.
host_waited: Hook[Callable[[Any], object]] = Hook()
# (machine): the host waits for a GPU, or takes what it has enqueued, where CUDA's sync debug mode does not look.
device_waited: Hook[Callable[[Any], object]] = Hook()
# (machine) -> whether all of these waits, and the operators below, are to be told of now.
is_followed: Hook[Callable[[Any], bool]] = Hook()
# (machine): an operator runs on a GPU, while somebody follows.
operator_ran: Hook[Callable[[Any], object]] = Hook()
# (event, stream or None): it was recorded, or is waited for, there or on the stream that this thread has chosen.
event_recorded: Hook[Callable[[Any, Any], object]] = Hook()
event_awaited: Hook[Callable[[Any, Any], object]] = Hook()
# (gpu, storage): the storage lives on the GPU from now on.
storage_taken: Hook[Callable[[Any, Any], object]] = Hook()
# (): a tensor that C++ made was met, and counts by itself.
tensor_met: Hook[Callable[[], object]] = Hook()
# () -> whether CUDA is in use where this thread runs; None: the machine knows.
cuda_initialized: Hook[Callable[[], bool | None]] = Hook()
# (class of tensors or of dispatch modes): it was made while the machine is in use.
class_made: Hook[Callable[[type], object]] = Hook()
