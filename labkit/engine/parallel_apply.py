"""parallel_apply: run each replica on its own input, on its own device, together with the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import turns
from ..base import tree
from ..base.language import say, series, wrong
from .devices import as_device, as_devices
from .explain import hint


def thread_state() -> Callable[[], AbstractContextManager[None]]:
    """Capture PyTorch's thread-local settings, and return a context to set them in another thread.

    PyTorch itself passes on only grad mode and whether autocast is on: its replicas lose the autocast
    dtype, inference mode and the default device.
    """
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    cache = torch.is_autocast_cache_enabled()

    @contextmanager
    def state() -> Iterator[None]:
        autocast = torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache)
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), autocast:
            yield

    return state


def parallel_apply(
    modules: Sequence[nn.Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Any = None,
) -> list[Any]:
    """Return the outputs of ``modules[i](*inputs[i], **kwargs_tup[i])`` on ``devices[i]``, in order.

    An exception in a replica is raised here with the replica, its device, the shapes of its inputs and the
    original traceback; if several replicas fail, all are named.
    """
    count = len(modules)
    kwargs_tup = kwargs_tup if kwargs_tup is not None else [{}] * count
    for name, given in (("inputs", inputs), ("kwargs_tup", kwargs_tup), ("devices", devices)):
        if given is not None and len(given) != count:
            raise wrong(
                en=f"there are {count} modules but {len(given)} {name}: one is needed for each module",
                zh=f"有 {count} 个模块，但 {name} 有 {len(given)} 个：每个模块要有一个",
            )
    inputs = [given if isinstance(given, (tuple, list)) else (given,) for given in inputs]
    places = (
        as_devices(devices, "devices")
        if devices is not None
        else [_device_of(*pair) for pair in zip(inputs, kwargs_tup, strict=True)]
    )
    failures: dict[int, Exception] = {}

    def run(replica: int) -> Any:
        try:
            with torch.cuda.device(places[replica] if places[replica].type == "cuda" else None):
                return modules[replica](*inputs[replica], **kwargs_tup[replica])
        except Exception as error:
            failures[replica] = error

    if count == 1:
        outputs = [run(0)]
    else:
        names = [f"replica {replica} on {place}" for replica, place in enumerate(places)]
        outputs = turns.run_together(names, [partial(run, at) for at in range(count)], thread_state())
    if failures:
        raise _combine_failures(failures, modules, places, inputs, kwargs_tup)
    return outputs


def _device_of(inputs: Any, kwargs: dict[str, Any]) -> torch.device:
    for tensor in tree.tensors_in(inputs, kwargs):
        return tensor.device
    return as_device("cuda" if torch.cuda.is_available() else "cpu")


def _combine_failures(
    failures: dict[int, Exception],
    modules: Sequence[nn.Module],
    places: Sequence[torch.device],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]],
) -> Exception:
    """Make an exception of the first failure's class that describes all failures."""
    first, error = min(failures.items())
    text = "".join(traceback.format_exception(error))
    message = (
        # PyTorch's own words, with the replica's input.
        f"Caught {type(error).__name__} in replica {first} on {places[first]}"
        + say(
            en=f", given {_shapes(inputs[first], kwargs_tup[first])}.",
            zh=f"，它的输入是 {_shapes(inputs[first], kwargs_tup[first])}。",
        )
        + f"\nOriginal {text}"
    )
    others = [
        f"replica {at} on {places[at]}: {type(other).__name__}: {other}"
        for at, other in sorted(failures.items())
        if at != first and not isinstance(other, turns.Deadlock)  # whose text is the same for all
    ]
    if others:
        message += say(en="Failed too:", zh="同样出错的还有：") + "\n  " + "\n  ".join(others)
    message += hint(error, modules[first], places[first], inputs[first])
    try:
        combined = type(error)(message)
    except Exception:
        combined = RuntimeError(message)  # for classes whose constructor takes no single text
    for failed in failures.values():
        # Break the cycle of traceback, frame and exception: tensors would wait for the garbage collector.
        failed.with_traceback(None)
    combined.failures = failures  # type: ignore[attr-defined]  # ours, on an exception of any class
    return combined


def _shapes(inputs: Any, kwargs: dict[str, Any]) -> str:
    named = [(tree.input_name(at), value) for at, value in enumerate(inputs)] + list(kwargs.items())
    found = [pair for name, value in named for pair in tree.tensors(value, name).items()]
    return series(f"{path}: {list(tensor.shape)}" for path, tensor in found) or say(
        en="no tensors", zh="没有张量"
    )
