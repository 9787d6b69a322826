"""GPU models for ``gpu_model=``: the rows of ``gpu_models.txt``, each with the source of its figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.base.files import rows_beside
from labkit.base.numbers import must


@dataclass(frozen=True)
class GpuModel:
    """A GPU model: the user's name, the memory as ``simulate`` takes it, and the properties by CUDA's names."""

    called: str
    memory: str | int
    properties: dict[str, Any]


def _models() -> dict[str, GpuModel]:
    rows = rows_beside(__file__)
    of_capability = {row[1]: tuple(map(int, row[2:5])) for row in rows if row[0] == "threads"}
    made = {}
    for _, called, name, memory, capability, processors, cache, _ in (
        row for row in rows if row[0] == "model"
    ):
        threads, shared, most = of_capability[capability]
        major, minor = map(int, capability.split("."))
        made[_plain(called)] = GpuModel(called, int(memory) if memory.isdigit() else memory, {
            "name": name, "gcnArchName": name, "major": major, "minor": minor, "multi_processor_count": int(processors),
            "max_threads_per_multi_processor": threads, "shared_memory_per_multiprocessor": shared,
            "shared_memory_per_block_optin": most, "L2_cache_size": int(cache) * 1024**2,
        })  # fmt: skip
    return made


def _plain(called: str) -> str:
    return re.sub(r"[\s_-]", "", called).upper()


_KNOWN = _models()
SIMULATED = _KNOWN.pop("SIMULATED")  # the default
MODELS = tuple(_KNOWN.values())


def gpu_model(called: str | None) -> GpuModel:
    """Return the model called ``called`` ("RTX 4090", "rtx-4090"), the default for None, or raise ValueError."""
    found = SIMULATED if called is None else _KNOWN.get(_plain(called)) if isinstance(called, str) else None
    if found is None:
        names = [model.called for model in MODELS]
        en, zh = f"one of {', '.join(names)}", f"是 {'、'.join(names)} 之一"
        raise ValueError(must("gpu_model", called, en=en, zh=zh))
    return found


def with_model(
    memory: str | int | Sequence[str | int] | None, called: str | None
) -> tuple[str | int | Sequence[str | int], GpuModel]:
    """Return the requested memory, or else the model's, and the model."""
    model = gpu_model(called)
    return (model.memory if memory is None else memory), model
