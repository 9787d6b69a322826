"""Read tables of measured runs, and measure the model's errors on them: ``labkit plan --check``."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.base.language import wrong
from labkit.cost.hardware import ACCELERATORS, Accelerator
from labkit.cost.plan import Forecast, forecast
from labkit.cost.settings import SOFTWARE, Plan, check_plan
from labkit.cost.sizes import Sizes

_SPEEDS = ("sec_per_step", "tokens_per_s_per_gpu")
# Sizes of models that rows only name: MosaicML's MPT (llm-foundry's scripts/train/yamls), InternLM.
_MPT = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
_INTERN = {"7b": (32, 4096, 32, 11008), "20b": (60, 5120, 40, 13824)}
# Part of a GPU's name -> key in ACCELERATORS.
_GPUS = {
    "h200": "h200", "h100": "h100", "b200": "b200", "a100_40": "a100-40", "a100 400g": "a100-400g", "a100": "a100",
    "a800": "a100",
}  # fmt: skip
# Usual words for ZeRO's stages, in lower case, without blanks, dashes and underscores. Digits are read first.
_STAGES = {
    0: "^$|^none|^no|^false|fsdp=0|^ddp|^dp$", 1: "dist(ributed)?opt|shardedopt", 2: "shardgradop",
    3: "fullshard|fsdp|hybridshard|hsdp",
}  # fmt: skip
# Trainer by a word in a row's set, source or note; without one, FSDP from stage 2 on, else Megatron.
_TRAINERS = (
    ("megatron-deepspeed|bigscience|bloom|prequel", "megatron-2021"), ("nanotron|ultra-?scale", "nanotron"),
    ("internevo", "internevo"), ("mosaic", "mosaic"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A measured run. ``seconds`` of a step, or None; ``peak`` in bytes, or None; ``fits``: it was not out of memory.

    set       the source that it belongs to, ``line`` its place there.
    problem   the same for rows that only the plan and the batch tell apart.
    batch     sequences of a step, as the row says.
    smi       whether ``peak`` is nvidia-smi's, and not PyTorch's allocator's.
    """

    set: str
    line: str
    problem: tuple[str, ...]
    gpu: str
    sizes: Sizes
    plan: Plan
    software: str
    batch: int
    seconds: float | None
    peak: float | None
    fits: bool = True
    smi: bool = False

    def forecast(self, known: Mapping[str, Accelerator] = ACCELERATORS) -> Forecast:
        return forecast(self.sizes, self.plan, known[self.gpu], SOFTWARE[self.software])


def read_rows(path: str | Path, skipped: dict[str, list[str]] | None = None) -> list[Row]:
    """Return the rows that the model covers. Add the reasons of the others, with file and line, to ``skipped``.

    Raises ValueError if the file is no such table, or if it has none.
    """
    skipped = {} if skipped is None else skipped
    rows: list[Row] = []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            wanted = "set gpu gpus model seq tp pp dp mbs sec_per_step tokens_per_s_per_gpu".split()
            if missing := ", ".join(name for name in wanted if name not in (table.fieldnames or ())):
                raise wrong(en=f"{path}:1: columns are missing: {missing}", zh=f"{path}:1：缺少列 {missing}")
            for one in table:
                try:
                    rows.append(_row({k: (v or "").strip() for k, v in one.items() if isinstance(v, str)}))
                except ValueError as error:
                    skipped.setdefault(str(error), []).append(f"{path}:{table.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None
    if not rows:
        why = "".join(f"\n{places[0]}: {reason}" for reason, places in skipped.items())
        raise wrong(en=f"{path}: no row is covered by the model{why}", zh=f"{path}：没有一行能算{why}")
    return rows


def _number(one: Mapping[str, str], name: str, other: float = 0) -> float:
    """Return the number in a column, or ``other`` if the cell is empty."""
    text = one.get(name, "")
    if text and not re.fullmatch(r"[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        raise wrong(en=f"column {name}: {text!r} is no number", zh=f"列 {name}：{text!r} 不是数")
    return float(text) if text else other


def _parse_count(one: Mapping[str, str], name: str, other: int = 0) -> int:
    return int(_number(one, name, other))


def _refuse_cell(one: Mapping[str, str], name: str) -> Exception:
    return wrong(en=f"column {name}: {one[name]!r} is not covered", zh=f"列 {name}：不支持 {one[name]!r}")


def _stage(one: Mapping[str, str], dp: int) -> tuple[int, int]:
    """Return the stage of ZeRO, and the number of ranks that it shards over (0: all)."""
    shard = one.get("shard", "").lower()
    group = re.search(r"group *(-?[0-9]+)", shard)
    word = re.sub(r"[ _-]", "", shard[: group.start()] if group else shard)
    many = max(0, int(group[1])) if group else 8 if re.match("hybrid|hsdp", word) and dp > 8 else 0
    if "fsdp=true" in one.get("note", "").lower():
        return 3, many
    if found := re.search(r"(?:zero|stage|^z)([0-3])|^([0-3])(?:\.0)?$", word):
        return int(found[1] or found[2]), many
    for stage, names in _STAGES.items():
        if re.search(names, word):
            return stage, many
    raise _refuse_cell(one, "shard")


def _row(one: Mapping[str, str]) -> Row:
    gpu = next((name for mark, name in _GPUS.items() if mark in one["gpu"].lower()), None)
    if gpu is None:
        raise _refuse_cell(one, "gpu")
    if re.search("f(p|loat)[48]|e4m3", precision := one.get("precision", "").lower()):
        raise _refuse_cell(one, "precision")
    for name in ("cp", "ep"):
        if _parse_count(one, name, 1) > 1:
            raise _refuse_cell(one, name)
    tp, pp, gpus = _parse_count(one, "tp", 1), _parse_count(one, "pp", 1), _parse_count(one, "gpus")
    dp = _parse_count(one, "dp") or gpus // (tp * pp)
    if dp * tp * pp != gpus or not gpus:
        raise wrong(en="dp · tp · pp is not gpus", zh="dp · tp · pp 不等于 gpus")
    sizes, micro = _sizes(one, tp), _parse_count(one, "mbs", 1)
    batch = _parse_count(one, "gbs_seqs") or dp * micro * 4  # if the row does not say
    stage, group = _stage(one, dp)
    about = " ".join(one.get(name, "") for name in ("set", "source", "note", "trainer")).lower()
    named = (trainer for words, trainer in _TRAINERS if re.search(words, about))
    software = next(named, "fsdp" if stage >= 2 else "megatron")
    truth, checkpoint = ("true", "1", "yes", "full"), one.get("act_ckpt", "").lower()
    again = checkpoint.startswith(truth) or ("selective" in checkpoint and software == "fsdp" and "selective")
    flash = one.get("flash", "").lower() or ("false" if software == "megatron-2021" else "true")
    # nanotron's sweeps ran REDUCE_SCATTER (scripts/scaling_benchmarks.py), torchtitan's tp is sequence parallel.
    parallel = "reduce_scatter" in about or (software == "nanotron" and "all_reduce" not in about)
    usual = "gathered" if "torchtitan" in about else str(parallel).lower()
    sp = one.get("sp", "").lower() or (usual if tp > 1 else "false")
    # Megatron adds bfloat16 up in 32 bits, DeepSpeed's BF16_Optimizer and nanotron too.
    long = software == "nanotron" or ("bf16" in precision and software.startswith("megatron"))
    chunks = _parse_count(one, "vp", 1) or 1
    spread = "cost" if software == "nanotron" else ""
    if not spread and sizes.layers % (pp * chunks):
        spread = "ends" if software == "megatron-2021" and (sizes.layers + 2) % pp == 0 else "uneven"
    plan = Plan(
        dp, tp, pp, stage, micro, max(1, batch // (dp * micro)), again, group,
        chunks, sp if sp == "gathered" else sp in truth, flash in truth,
        _parse_count(one, "grads", 4 if long else 2), one.get("spread") or spread,
    )  # fmt: skip
    check_plan(sizes, plan)
    fits = not any("oom" in one.get(name, "").lower() for name in ("mem_GiB", *_SPEEDS))
    measured = one if fits else {}
    speed, seconds = _number(measured, _SPEEDS[1]), _number(measured, _SPEEDS[0])
    tokens = plan.dp * plan.micro * plan.many * sizes.seq / plan.gpus
    took = tokens / speed if speed else seconds or None
    peak = _number(measured, "mem_GiB") * 2**30 or None
    facts = (gpus, sizes.name, sizes.layers, sizes.hidden, sizes.heads, sizes.seq)
    problem = (one["set"], gpu, *map(str, facts))
    return Row(
        one["set"], one.get("line", ""), problem, gpu, sizes, plan, software, batch, took, peak, fits,
        SOFTWARE[software].flat,
    )  # fmt: skip


def _sizes(one: Mapping[str, str], tp: int) -> Sizes:
    called = [*one["model"].split(), "", ""]
    name, kind = " ".join(called[:2]).strip(), called[0].lower()
    if one["set"] == "internevo" and kind in _INTERN:
        seq = 2048 if "7B_sft.py" in one["seq"] else _parse_count(one, "seq")  # which configs/7B_sft.py says
        return Sizes(*_INTERN[kind], 103168, seq, gated=True, name=name)
    seq = _parse_count(one, "seq")
    if kind == "mpt" and called[1] in _MPT and not one.get("layers"):
        layers, hidden, heads = _MPT[called[1]]
        return Sizes(layers, hidden, heads, 4 * hidden, 50368, seq, tied=True, name=name)
    if not (one.get("layers") and one.get("hidden")):
        raise wrong(en=f"the sizes of {name!r} are unknown", zh=f"不知道 {name!r} 的大小")
    hidden, kv = _parse_count(one, "hidden"), _parse_count(one, "kv_heads")
    guess = next((n for n in range(hidden // 128 or 1, 0, -1) if hidden % n == 0 and n % tp == 0), 1)
    heads, ffn, vocab = (
        _parse_count(one, *pair) for pair in (("heads", guess), ("ffn", 4 * hidden), ("vocab", 51200))
    )
    gated = bool(re.search("llama|mistral|qwen|smol|gemma|nanotron", f"{one['model']} {one['set']}".lower()))
    # Tied, with 8 kv_heads or not: as makes as many parameters as the model's name says ("8.86B").
    ways = [
        Sizes(_parse_count(one, "layers"), hidden, heads, ffn, vocab, seq, n, gated, tied, not gated, name)
        for tied in (not gated, gated)
        for n in ([kv] if kv or not gated or heads % 8 else [0, 8])
    ]
    named = re.search(r"([0-9]+(?:\.[0-9]+)?) *([BM])\b", one["model"], re.IGNORECASE)
    count = float(named[1]) * (1e9 if named[2] in "bB" else 1e6) if named else ways[0].parameters
    return min(ways, key=lambda way: abs(way.parameters - count))


@dataclass(frozen=True)
class Errors:
    """The errors of one set, as shares: mean and worst of time and of peak memory, and the mean regret.

    regret   how much longer the plan takes that the model chooses than the best measured one, over problems with
             three plans or more.
    failed   how many rows that were out of memory have the verdicts "no", "close" and "fits"; ``ran``: of those that
             ran.
    contradictory   rows left out of regret, by their lines in the source.
    """

    set: str
    rows: int
    time: tuple[float, float] | None
    peak: tuple[float, float] | None
    regret: tuple[float, int] | None
    failed: tuple[int, ...]
    ran: tuple[int, ...]
    contradictory: tuple[str, ...]


def errors(rows: Iterable[Row]) -> list[Errors]:
    """Return the model's errors by set, in the order of the sets."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row.set, []).append(row)
    return [_errors(name, found) for name, found in sets.items()]


def _errors(name: str, rows: list[Row]) -> Errors:
    pairs = [(row, row.forecast()) for row in rows]
    failed, ran = (
        tuple(
            sum(row.fits == ran and found.verdict == one for row, found in pairs)
            for one in ("no", "close", "fits")
        )
        for ran in (False, True)
    )
    times = [abs(found.seconds / row.seconds - 1) for row, found in pairs if row.seconds]
    peaks = [
        abs((found.reserved if row.smi else found.peak) / row.peak - 1) for row, found in pairs if row.peak
    ]
    contradictory = _contradictory_rows(rows)
    problems: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row, found in pairs:
        if row.seconds and row not in contradictory:
            took = row.seconds / found.plan.many / found.plan.micro / found.plan.dp
            problems.setdefault((*row.problem, str(row.batch)), []).append((found.tokens, took))
    regrets = [
        max(found)[1] / min(took for _, took in found) - 1 for found in problems.values() if len(found) >= 3
    ]
    return Errors(
        name, len(rows), _mean_and_worst(times), _mean_and_worst(peaks),
        (sum(regrets) / len(regrets), len(regrets)) if regrets else None, failed, ran,
        tuple(row.line for row in contradictory),
    )  # fmt: skip


def _contradictory_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that contradict another with the same settings.

    Two runs of one batch may differ by 5 %. A run of a batch that is a tenth smaller, or more, must be faster by 3 %.
    """
    same: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.seconds:
            same.setdefault((row.problem, replace(row.plan, many=1)), []).append(row)
    return [
        one
        for group in same.values()
        for one in group
        if any(_contradict(*sorted((one, other), key=lambda row: row.batch)) for other in group)
    ]


def _contradict(small: Row, large: Row) -> bool:
    short, long = small.seconds or 0.0, large.seconds or 0.0
    if small.batch == large.batch:
        return abs(short / long - 1) > 0.05
    return small.batch <= 0.9 * large.batch and short > 0.97 * long


def _mean_and_worst(found: list[float]) -> tuple[float, float] | None:
    return (sum(found) / len(found), max(found)) if found else None
