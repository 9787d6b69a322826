"""A piece of HTML for readers without a kernel, in which one control still moves.

Precomputed are pictures for some values of that control: every value if they fit into :data:`BUDGET` characters
and :data:`MOST` pictures, else values evenly apart, the one shown among them, at least three. Elements that several
pictures have are written once: a picture is a list of their numbers. A page where scripts
run gets a slider over them, which mouse and keyboard move; where none run, the picture stands alone, and there is
no dead control beside it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

BUDGET = 50_000
MOST = 24

# Where a tag begins after another one.
_BETWEEN = re.compile("(?<=>)(?=<[a-z])")

# No ids, so that any number of explorers share a page: the script finds its own surroundings.
_SCRIPT = """
(() => {
  const script = document.currentScript, box = script.parentNode;
  const {label, at, states, parts} = JSON.parse(script.previousElementSibling.textContent);
  const view = box.querySelector('.labkit-view'), words = box.querySelector('.labkit-sentence');
  const row = document.createElement('label'), range = document.createElement('input');
  const told = document.createElement('output');
  row.style.cssText = 'display:flex;gap:.8em;align-items:center;margin:.3em 0';
  Object.assign(range, {type: 'range', min: 0, max: states.length - 1, value: at});
  range.style.width = '320px';
  const show = () => {
    const [name, numbers] = states[+range.value];
    view.innerHTML = numbers.map(n => parts[n]).join('');
    told.textContent = name;
    range.setAttribute('aria-valuetext', name);
    words.textContent = view.firstElementChild.getAttribute('aria-label');
  };
  range.addEventListener('input', show);
  row.append(label, range, told);
  box.prepend(row);
  show();
})();
"""


def static_html(
    label: str, every: Sequence[Any], now: Any, drawn: Callable[[Any], tuple[str, str]], words: str
) -> str:
    """An explorer, as it stands at ``now``, without a kernel.

    label   of the control that moves.
    every   its values, ``now`` among them.
    drawn   what the control says at a value, and the picture there as SVG.
    words   the picture at ``now`` in words.
    """
    room = MOST
    while True:
        values, at = _some(every, now, room)
        states = [drawn(value) for value in values]
        parts: dict[str, int] = {}
        listed = [
            (name, [parts.setdefault(part, len(parts)) for part in _BETWEEN.split(svg)])
            for name, svg in states
        ]
        data = json.dumps(
            {"label": label, "at": at, "states": listed, "parts": [*parts]},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        if len(data) <= BUDGET or room <= 3:
            break
        room = max(3, min(room - 1, room * BUDGET // len(data)))
    # Nothing in it may end the script element.
    data = data.replace("</", "<\\/")
    picture = b64encode(states[at][1].encode()).decode()
    words = escape(words)
    return (
        '<div class="labkit-still" style="max-width:760px">'
        f'<div class="labkit-sentence" aria-live="polite">{words}</div>'
        f'<div class="labkit-view"><img alt="{words}" src="data:image/svg+xml;base64,{picture}"></div>'
        f'<script type="application/json">{data}</script><script>{_SCRIPT}</script></div>'
    )


def _some(every: Sequence[Any], now: Any, room: int) -> tuple[list[Any], int]:
    """At most ``room`` values, and which of them is ``now``."""
    values = list(every)
    if len(values) > room:
        step = (len(values) - 1) / (room - 1)
        values = sorted({values[round(at * step)] for at in range(room)})
        nearest = min(range(len(values)), key=lambda at: abs(values[at] - now))
        values[nearest] = now
    return values, values.index(now)
