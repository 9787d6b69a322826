"""Rows of measured runs, in the columns of a table of such, and the model's errors on them: ``labkit plan --check``."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base.language import wrong
from .hardware import ACCELERATORS, Accelerator
from .plan import SOFTWARE, Forecast, Plan, forecast
from .sizes import Sizes

# The sizes of models that rows name without giving them: MosaicML's MPT (llm-foundry's scripts/train/yamls), InternLM.
_MPT = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
# What of a GPU's name says which it is, and of the word for sharding which stage.
_GPUS = {
    "h200": "h200", "h100": "h100", "b200": "b200", "a100_40": "a100-40", "a100": "a100", "a800": "a100",
}  # fmt: skip
_STAGES = ((3, "full_shard|fsdp"), (2, "shard_grad"), (1, "zero1"))
_INTERN = {"7b": (32, 4096, 32, 11008), "20b": (60, 5120, 40, 13824)}


@dataclass(frozen=True)
class Row:
    """A measured run. ``seconds`` of a step, or None; ``peak`` in bytes, or None.

    set       the source that it belongs to, ``line`` its place there.
    problem   the same for rows that only the plan tells apart.
    """

    set: str
    line: str
    problem: tuple[str, ...]
    gpu: str
    sizes: Sizes
    plan: Plan
    software: str
    seconds: float | None
    peak: float | None

    def forecast(self, known: Mapping[str, Accelerator] = ACCELERATORS) -> Forecast:
        return forecast(self.sizes, self.plan, known[self.gpu], SOFTWARE[self.software])


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a table that name sizes, a GPU and a plan that the model knows; others are left out.

    Raises ValueError if the file is no such table.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None
    wanted = "set gpu gpus model seq tp pp dp mbs sec_per_step tokens_per_s_per_gpu".split()
    missing = [name for name in wanted if not found or name not in found[0]]
    if missing:
        listed = ", ".join(missing)
        raise wrong(en=f"{path}: columns are missing: {listed}", zh=f"{path}：缺少列 {listed}")
    return [row for one in found if (row := _row(one)) is not None]


def _whole(text: str | None, other: int = 0) -> int:
    return int(float(text)) if text and re.fullmatch(r"[0-9.]+", text) else other


def _row(one: Mapping[str, str]) -> Row | None:
    gpu = next((name for mark, name in _GPUS.items() if mark in one["gpu"].lower()), None)
    sizes = _sizes(one)
    if gpu is None or sizes is None or one.get("precision") == "amp_fp8":
        return None
    tp, pp, gpus = _whole(one["tp"], 1), _whole(one["pp"], 1), _whole(one["gpus"])
    dp = _whole(one["dp"]) or gpus // (tp * pp)
    if dp * tp * pp != gpus or not gpus:
        return None
    shard, checkpoint = (one.get("shard") or "").lower(), (one.get("act_ckpt") or "").lower()
    micro = _whole(one["mbs"], 1)
    batch = _whole(one.get("gbs_seqs")) or dp * micro * 4  # where nothing is said
    stage = next((stage for stage, mark in _STAGES if re.search(mark, shard)), 0)
    group = re.search(r"group ([0-9]+)", shard)
    plan = Plan(
        dp, tp, pp, stage, micro, max(1, batch // (dp * micro)), checkpoint.startswith(("true", "full")),
        int(group[1]) if group else 0, _whole(one.get("vp"), 1) or 1,
    )  # fmt: skip
    old = "Megatron-DeepSpeed" in (one.get("note") or "")
    software = "megatron-2021" if old else "fsdp" if stage >= 2 else "megatron"
    speed, seconds = one["tokens_per_s_per_gpu"], one["sec_per_step"]
    tokens = plan.dp * plan.micro * plan.many * sizes.seq / plan.gpus
    took = tokens / float(speed) if speed else float(seconds) if seconds else None
    peak = float(one["mem_GiB"]) * 2**30 if one.get("mem_GiB") else None
    told = (gpus, sizes.name, sizes.layers, sizes.hidden, sizes.seq, batch)
    problem = (one["set"], gpu, *map(str, told))
    return Row(one["set"], one.get("line") or "", problem, gpu, sizes, plan, software, took, peak)


def _sizes(one: Mapping[str, str]) -> Sizes | None:
    called, seq = one["model"].split(), _whole(one["seq"])
    name = " ".join(called[:2])
    if one.get("layers") and one.get("hidden"):
        hidden, heads = _whole(one["hidden"]), _whole(one.get("heads")) or _whole(one["hidden"]) // 128
        ffn, vocab = _whole(one.get("ffn")) or 4 * hidden, _whole(one.get("vocab")) or 51200
        return Sizes(
            _whole(one["layers"]), hidden, heads, ffn, vocab, seq, tied=True, dropout=True, name=name
        )
    if called[0] == "MPT" and called[1] in _MPT and seq:
        layers, hidden, heads = _MPT[called[1]]
        return Sizes(layers, hidden, heads, 4 * hidden, 50368, seq, tied=True, name=name)
    if one["set"] == "internevo" and called[0].lower() in _INTERN and seq:
        layers, hidden, heads, ffn = _INTERN[called[0].lower()]
        return Sizes(layers, hidden, heads, ffn, 103168, seq, gated=True, name=name)
    return None


@dataclass(frozen=True)
class Errors:
    """The errors of one set, as shares: mean and worst of time and of peak memory, and the mean regret.

    regret   how much longer the plan takes that the model chooses than the best measured one, over problems with
             three plans or more.
    """

    set: str
    rows: int
    time: tuple[float, float] | None
    peak: tuple[float, float] | None
    regret: tuple[float, int] | None


def errors(rows: Iterable[Row]) -> list[Errors]:
    """The model's errors by set, in the order of the sets."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row.set, []).append(row)
    return [_errors(name, found) for name, found in sets.items()]


def _errors(name: str, rows: list[Row]) -> Errors:
    told = [(row, row.forecast()) for row in rows]
    times = [abs(seen.seconds / row.seconds - 1) for row, seen in told if row.seconds]
    peaks = [abs(seen.peak / row.peak - 1) for row, seen in told if row.peak]
    problems: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row, seen in told:
        if row.seconds:
            problems.setdefault(row.problem, []).append(
                (seen.tokens, row.seconds / seen.plan.many / seen.plan.micro / seen.plan.dp)
            )
    regrets = [
        max(found)[1] / min(took for _, took in found) - 1 for found in problems.values() if len(found) >= 3
    ]
    return Errors(
        name, len(rows), _mean_and_worst(times), _mean_and_worst(peaks),
        (sum(regrets) / len(regrets), len(regrets)) if regrets else None,
    )  # fmt: skip


def _mean_and_worst(found: list[float]) -> tuple[float, float] | None:
    return (sum(found) / len(found), max(found)) if found else None
