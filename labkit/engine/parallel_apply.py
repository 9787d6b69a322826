"""parallel_apply: each replica runs on its own input, on its own device, in its own thread.

Where replicas take turns anyway (a simulated machine) they run one after another in the caller's thread.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence

import torch
from torch import nn

from ..base import tree, turns
from .devices import as_devices
from .explain import hint


class ThreadState:
    """What PyTorch keeps per thread, taken here and set in the replicas' threads.

    PyTorch itself passes on only grad mode and whether autocast is on: its replicas lose the autocast
    dtype, inference mode and the default device.
    """

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        self.cache = torch.is_autocast_cache_enabled()

    def __enter__(self) -> ThreadState:
        enabled, dtype = self.autocast
        self._contexts = [
            torch.inference_mode(self.inference),
            torch.set_grad_enabled(self.grad),
            torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=self.cache),
        ]
        for context in self._contexts[:1] + self._contexts[2:]:
            context.__enter__()
        return self

    def __exit__(self, *exc_info) -> None:
        self._contexts[2].__exit__(*exc_info)
        self._contexts[0].__exit__(*exc_info)


def parallel_apply(
    modules: Sequence[nn.Module], inputs: Sequence, kwargs_tup: Sequence[dict] | None = None, devices=None
) -> list:
    """The outputs of ``modules[i](*inputs[i], **kwargs_tup[i])`` on ``devices[i]``, in order.

    An exception in a replica is raised here with the replica, its device, the shapes of its inputs and the
    original traceback; if several replicas fail, all are named.
    """
    count = len(modules)
    kwargs_tup = kwargs_tup if kwargs_tup is not None else [{}] * count
    for name, given in (("inputs", inputs), ("kwargs_tup", kwargs_tup), ("devices", devices)):
        if given is not None and len(given) != count:
            raise ValueError(
                f"there are {count} modules but {len(given)} {name}: one is needed for each module"
            )
    inputs = [given if isinstance(given, (tuple, list)) else (given,) for given in inputs]
    places = (
        as_devices(devices, "devices")
        if devices is not None
        else [_device_of(*pair) for pair in zip(inputs, kwargs_tup, strict=True)]
    )
    outputs: list = [None] * count
    failures: dict[int, BaseException] = {}
    state = ThreadState() if count > 1 else None

    def run(replica: int) -> None:
        try:
            with torch.cuda.device(places[replica] if places[replica].type == "cuda" else None):
                outputs[replica] = modules[replica](*inputs[replica], **kwargs_tup[replica])
        except Exception as error:
            failures[replica] = error

    def run_in_thread(replica: int) -> None:
        try:
            with state:
                run(replica)
        except BaseException as error:
            failures[replica] = error

    if count == 1:
        run(0)
    elif turns.can_run_one_by_one():
        turns.run_one_by_one(count, run, run_in_thread)
    else:
        threads = [
            threading.Thread(target=run_in_thread, args=(at,), name=f"replica {at}") for at in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise _combined(failures, modules, places, inputs, kwargs_tup)
    return outputs


def _device_of(inputs, kwargs) -> torch.device:
    for tensor in tree.tensors((tuple(inputs), kwargs)).values():
        return tensor.device
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def _combined(failures: dict[int, BaseException], modules, places, inputs, kwargs_tup) -> BaseException:
    """One exception of the first failure's class that tells of all of them."""
    first, error = min(failures.items())
    if not isinstance(error, Exception):
        return error  # KeyboardInterrupt, SystemExit: not ours to rewrite
    text = "".join(traceback.format_exception(error))
    message = (
        f"Caught {type(error).__name__} in replica {first} on {places[first]}, "
        f"given {_shapes(inputs[first], kwargs_tup[first])}.\nOriginal {text}"
    )
    others = [
        f"replica {at} on {places[at]}: {type(other).__name__}: {other}"
        for at, other in sorted(failures.items())
        if at != first
    ]
    if others:
        message += "Failed too:\n  " + "\n  ".join(others)
    message += hint(error, modules[first], places[first], inputs[first])
    try:
        combined = type(error)(message)
    except Exception:
        combined = RuntimeError(message)  # classes that cannot be made from one text
    for failed in failures.values():
        # Their tracebacks hold the frames that hold them: without this, tensors would wait for the collector.
        failed.with_traceback(None)
    combined.failures = failures
    return combined


def _shapes(inputs, kwargs) -> str:
    named = [(f"input {at}", value) for at, value in enumerate(inputs)] + list(kwargs.items())
    found = [pair for name, value in named for pair in tree.tensors(value, name).items()]
    return ", ".join(f"{path}: {list(tensor.shape)}" for path, tensor in found) or "no tensors"
