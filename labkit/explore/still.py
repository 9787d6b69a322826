"""An explorer for readers without a kernel: one of its controls still moves.

Precomputed are the pictures for some values of one state (``unfolds``), all others as they stand: every value
if they fit into :data:`BUDGET` characters and :data:`MOST` pictures, else values evenly apart, the one shown
among them, at least three. A page where scripts run gets a slider over them, which mouse and keyboard move;
where none run, the picture stands alone, and there is no dead control beside it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .explorer import Explorer

BUDGET = 120_000
MOST = 24

# No ids, so that any number of explorers share a page: the script finds its own surroundings.
_SCRIPT = """
(() => {
  const script = document.currentScript, box = script.parentNode;
  const {label, at, states} = JSON.parse(script.previousElementSibling.textContent);
  const view = box.querySelector('.labkit-view'), words = box.querySelector('.labkit-sentence');
  const row = document.createElement('label'), range = document.createElement('input');
  const told = document.createElement('output');
  row.style.cssText = 'display:flex;gap:.8em;align-items:center;margin:.3em 0';
  Object.assign(range, {type: 'range', min: 0, max: states.length - 1, value: at});
  range.style.width = '320px';
  const show = () => {
    const [name, svg] = states[+range.value];
    view.innerHTML = svg;
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


def still_html(explorer: Explorer) -> str:
    """The explorer as a piece of HTML that needs no kernel."""
    shown = explorer.still()
    name = explorer.unfolds
    room = MOST
    while True:
        values, at = _values(explorer, name, room)
        states = explorer.stills(name, values)
        size = sum(len(svg) for _, svg in states)
        if size <= BUDGET or room <= 3:
            break
        room = max(3, min(room - 1, room * BUDGET // size))
    label = explorer._controls[name].description
    data = json.dumps({"label": label, "at": at, "states": states}, ensure_ascii=False)
    # Nothing in it may end the script element.
    data = data.replace("</", "<\\/")
    picture = b64encode(shown.encode()).decode()
    words = escape(explorer._in_own_language(explorer.sentence))
    return (
        '<div class="labkit-still" style="max-width:760px">'
        f'<div class="labkit-sentence" aria-live="polite">{words}</div>'
        f'<div class="labkit-view"><img alt="{words}" src="data:image/svg+xml;base64,{picture}"></div>'
        f'<script type="application/json">{data}</script><script>{_SCRIPT}</script></div>'
    )


def _values(explorer: Explorer, name: str, room: int) -> tuple[list, int]:
    """At most ``room`` values of ``name`` that are precomputed, and which of them is the one shown."""
    now = getattr(explorer, name)
    if name in explorer.choices:
        every = list(explorer.choices[name])
    else:
        least, most = explorer.limits[name]
        every = list(range(least, most + 1))
    if len(every) > room:
        step = (len(every) - 1) / (room - 1)
        every = sorted({every[round(at * step)] for at in range(room)})
        nearest = min(range(len(every)), key=lambda at: abs(every[at] - now))
        every[nearest] = now
    return every, every.index(now)
