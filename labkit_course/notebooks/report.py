"""The report of a sweep: a page with a comparison of the runs, in the current language."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby
from pathlib import Path

import torch

from labkit import __version__
from labkit.base.language import get_language, say
from labkit.base.numbers import plural
from labkit.plans.batches import batches
from labkit.plans.split import Split

from .sweep import Run, Sweep

_STYLE = Path(__file__).with_suffix(".css").read_text("utf-8")


def report(sweep: Sweep, runs: list[Run]) -> str:
    """Return the page, with links to notebooks and pages, and a remark for each missing run."""
    title = f"{_title(sweep, runs)} · {say(en='a sweep over GPUs', zh='不同 GPU 数的对比')}"
    facts = [f"{name} = {value!r}" for name, value in sweep.parameters.items() if name != sweep.swept]
    if sweep.cell_limit:
        facts.append(
            say(en=f"at most {sweep.cell_limit} s a cell", zh=f"每个单元格最多 {sweep.cell_limit} 秒")
        )
    facts += [f"labkit {__version__}", f"PyTorch {torch.__version__}"]
    made = {run.gpus: run for run in runs}
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(" · ".join(facts))}</p>',
        f'<div class="wide"><table><thead><tr>{_heads(sweep)}</tr></thead><tbody>',
        *(_row(sweep, count, made.get(count)) for count in sweep.gpus),
        "</tbody></table></div>",
        *_shapes(runs),
        *_pictures(sweep),
    ]
    language = "zh-CN" if get_language() == "zh" else "en"
    return (
        f'<!doctype html>\n<html lang="{language}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def printed_shapes(run: Run) -> dict[str, list[str]]:
    """Return by cell id the printed lines with a shape, equal neighbours as one line with their number."""
    found = {}
    for cell in run.executed.cells:
        streams = [output for output in cell.get("outputs", []) if output.output_type == "stream"]
        text = "".join(stream.text for stream in streams if stream.name == "stdout")
        lines = [line.strip() for line in text.splitlines() if "torch.Size(" in line]
        if lines:
            found[cell.id] = _group_equal(lines, "  × ")
    return found


def _group_equal(items: Iterable[object], times: str) -> list[str]:
    """Return items as text; merge equal neighbours and add their number."""
    runs = [(str(item), len(list(same))) for item, same in groupby(items)]
    return [f"{item}{times}{count}" if count > 1 else item for item, count in runs]


def _splits(sweep: Sweep, count: int) -> list[Split]:
    """Return the splits of a full batch and of the last batch on ``count`` GPUs, or [] without a data size."""
    rows, size = sweep.parameters.get("data_size"), sweep.parameters.get("batch_size")
    if type(rows) is not int or type(size) is not int or rows < 1 or size < 1:
        return []
    return [kind for kind, _ in batches(rows, size, gpus=max(count, 1)).kinds]


def _heads(sweep: Sweep) -> str:
    heads = [say(en="GPUs", zh="GPU 数"), say(en="result", zh="结果"), say(en="seconds", zh="用时（秒）")]
    heads += [say(en=f"a batch of {plan.batch}", zh=f"{plan.batch} 行的批次") for plan in _splits(sweep, 1)]
    return "".join(f"<th>{escape(head)}</th>" for head in [*heads, say(en="files", zh="文件")])


def _row(sweep: Sweep, count: int, run: Run | None) -> str:
    if run is None:
        result, seconds, files = f'<span class="soft">{say(en="not run", zh="未运行")}</span>', "", ""
    else:
        ok = f'<span class="good">{say(en="ok", zh="成功")}</span>'
        failed = f'<span class="bad">{say(en="failed", zh="失败")}</span><br>{escape(run.error)}'
        result, seconds = (failed if run.error else ok), f"{run.seconds:.1f}"
        page, notebook = say(en="page", zh="网页"), say(en="notebook", zh="笔记本")
        names = (run.page.name, page), (run.notebook.name, notebook)
        files = " · ".join(f'<a href="{escape(name)}">{text}</a>' for name, text in names)
    cells = [str(count), result, seconds, *(_pieces(plan, count) for plan in _splits(sweep, count)), files]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _pieces(plan: Split, count: int) -> str:
    sizes = ", ".join(_group_equal(plan.sizes, " ×"))
    if count == 0:
        return f'{sizes} <span class="soft">({say(en="on the CPU", zh="在 CPU 上")})</span>'
    if not plan.idle:
        return sizes
    idle = say(en=f"{len(plan.idle)} idle", zh=f"{len(plan.idle)} 块空闲")
    return f'{sizes}<br><span class="soft">{idle}</span>'


def _shapes(runs: list[Run]) -> list[str]:
    """Return the printed shapes of cells whose runs differ, as HTML."""
    printed = {run.gpus: printed_shapes(run) for run in runs}
    ids = list(dict.fromkeys(cell for shapes in printed.values() for cell in shapes))
    differ = [i for i in ids if len(printed) == 1 or len({tuple(s.get(i, ())) for s in printed.values()}) > 1]
    if not differ:
        return []
    parts = [f"<h2>{say(en='Printed shapes', zh='打印出的形状')}</h2>"]
    for count, shapes in printed.items():
        lines = [line for cell in differ for line in shapes.get(cell, ())]
        parts.append(f"<h3>{_gpus(count)}</h3>")
        parts.append(f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else "<p>—</p>")
    return parts


def _pictures(sweep: Sweep) -> list[str]:
    counts = [count for count in sweep.gpus if count > 0 and _splits(sweep, count)]
    parts = [f"<h2>{say(en='Who gets which rows', zh='哪些行归谁')}</h2>"] if counts else []
    for count in counts:
        parts.append(f"<h3>{_gpus(count)}</h3>")
        parts += [plan._repr_svg_() or "" for plan in _splits(sweep, count)]
    return parts


def _gpus(count: int) -> str:
    return say(en=plural(count, "GPU"), zh=f"{count} 块 GPU")


def _title(sweep: Sweep, runs: list[Run]) -> str:
    """Return the lesson's heading."""
    for cell in runs[0].executed.cells if runs else ():
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            heading: str = cell.source.splitlines()[0]
            return heading[2:]
    return sweep.lesson.stem
