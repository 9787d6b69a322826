"""Draws docs/call.svg and docs/call.zh.svg, the moving picture of the README (``make renew ARGS=printed``).

A call of ten rows on four GPUs, there and back: the eight moments of ``labkit.CallExplorer``, one after the other, in
an SVG that moves by its own style sheet. Who wants no motion sees the last moment, which has all of them in it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import labkit
from labkit.base.files import write_whole
from labkit.base.language import LANGUAGES, using

HERE = Path(__file__).parent
SECONDS = 1.6  # for a moment; the last one stays for two


def moving() -> str:
    """The call in the language in use, as SVG text."""
    explorer = labkit.CallExplorer(rows=10, gpus=4)
    least, most = explorer.limits["step"]
    moments = []
    for step in range(least, most + 1):
        explorer.step = step
        head, inside = re.fullmatch(
            r"(<svg.*?>)<title>.*?</title>(.*)</svg>", explorer.picture(), re.DOTALL
        ).groups()
        moments.append(inside)
    turns = len(moments) + 1
    shown = 100 / turns
    style = (
        f".moment{{visibility:hidden;animation:{turns * SECONDS:g}s step-end infinite shown}}"
        f"@keyframes shown{{0%{{visibility:visible}}{shown:.3f}%{{visibility:hidden}}}}"
        ".last{animation-name:stays}"
        f"@keyframes stays{{0%{{visibility:visible}}{2 * shown:.3f}%{{visibility:hidden}}}}"
        "@media (prefers-reduced-motion:reduce){.moment{animation:none}.last{visibility:visible}}"
    )
    groups = ""
    for at, inside in enumerate(moments):
        kind = "moment last" if inside is moments[-1] else "moment"
        groups += f'<g class="{kind}" style="animation-delay:{at * SECONDS:g}s">{inside}</g>'
    head = re.sub(r'aria-label="[^"]*"', f'aria-label="{explorer!r}"', head)
    return f"{head}<style>{style}</style>{groups}</svg>\n"


def main() -> int:
    for language, name in zip(LANGUAGES, ("call.svg", "call.zh.svg"), strict=True):
        with using(language):
            write_whole(HERE / name, moving())
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
