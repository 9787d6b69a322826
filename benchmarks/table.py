"""Runs every benchmark and keeps what they say in docs/benchmarks.md (``make bench``).

python benchmarks/table.py [NAME ...]     all of them, or only those of these names: the others' rows stay
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch

HERE = Path(__file__).parent
TABLE = HERE.parent / "docs" / "benchmarks.md"
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("pairs", "table"))
# A line of ``pairs.report`` or ``pairs.bound``.
_LINE = re.compile(r"(ok    |MISSED|      ) (\S.*?) +(-?[\d.]+)(\S*| \S+?)(?:  \(target (.*)\))?$")


def rows(name: str) -> list[str]:
    """The lines that the benchmark ``name`` prints; they are shown while it runs."""
    found = []
    command = [sys.executable, str(HERE / f"{name}.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if match := _LINE.match(line.rstrip()):
                met, claim, figure, unit, target = match.groups()
                verdict = {"ok    ": "met", "MISSED": "**missed**"}.get(met, "")
                found.append(f"| {claim} | {figure}{unit} | {target or ''} | {verdict} |")
    if process.returncode:
        raise SystemExit(f"{name}.py ended with code {process.returncode}; the table stays as it was")
    return found


def sections(text: str) -> dict[str, str]:
    """The table's parts by the name of their benchmark."""
    parts = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def main() -> int:
    asked = sys.argv[1:] or NAMES
    if unknown := [name for name in asked if name not in NAMES]:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    kept = sections(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    where = f"{date.today()}, {platform.system()}, Python {platform.python_version()}, PyTorch {torch.__version__}"
    for name in asked:
        body = "\n".join(["| what | figure | target | |", "| --- | --- | --- | --- |", *rows(name)])
        kept[name] = f"\n`python benchmarks/{name}.py`, {where}.\n\n{body}\n\n"
    text = "# Benchmarks\n\nMade by `make bench`. Each figure is a ratio within one run, the median of its pairs, "
    text += "unless its unit says otherwise; where a target is missed, the table says so.\n\n"
    text += "".join(f"## {name}\n{kept[name]}" for name in NAMES if name in kept)
    TABLE.write_text(text.rstrip() + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
