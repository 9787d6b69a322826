"""Turn errors of the CPU's kernels into CUDA's results or errors."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from .. import hooks
from ..state.gpu import Gpu


def translate_cpu_error(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: RuntimeError | IndexError, gpu: Gpu
) -> Any:
    """Turn an error from a CPU kernel into what CUDA would do: return a result, or raise CUDA's own error."""
    with refusals(gpu):
        for answer in hooks.call_failed:
            result = answer(func, args, kwargs, error, gpu)
            if result is not NotImplemented:
                return result
        raise error


class refusals:
    """Context manager that turns a failed allocation for a tensor on ``gpu`` into CUDA's error."""

    __slots__ = ("_gpu",)

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._gpu is not None and isinstance(error, RuntimeError):
            raised = self._gpu.translate_error(error)
            if raised is not error:
                raise raised from None
