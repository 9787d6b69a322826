"""Turn errors of the CPU's kernels into CUDA's results or errors."""

from __future__ import annotations

from typing import Any

from .. import hooks
from ..state.current_machine import at_work
from ..state.gpu import Gpu


def translate_cpu_error(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: RuntimeError | IndexError, gpu: Gpu
) -> Any:
    """Turn an error from a CPU kernel into what CUDA would do: return a result, or raise CUDA's own error."""
    with at_work(gpu):
        for answer in hooks.call_failed:
            result = answer(func, args, kwargs, error, gpu)
            if result is not NotImplemented:
                return result
        raise error
