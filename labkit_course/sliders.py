"""A learner's own numbers: sliders for a lesson's parameters, and what a function of them shows, run anew.

``vary(function, num_gpus=num_gpus, batch_size=batch_size)`` as the last line of a cell runs the function with the
parameters. In a running notebook a slider for each stands above what it showed; where no kernel runs, and where
nobody sits, that is the cell's output, and the parameters are the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from html import escape
from io import StringIO
from typing import Any

from labkit.base.language import get_language, using
from labkit.base.numbers import must
from labkit.base.texts import texts_beside
from labkit.base.widgets import live

from .lesson import LIMITS, checked_parameters

_TEXTS = texts_beside(__file__)

# How far a slider goes, unless its parameter is beyond: what is worth looking at, not all that a lesson takes.
_MOST = {"num_gpus": 8, "batch_size": 64, "data_size": 200, "num_ranks": 8}
# How a result shows itself in a notebook, the better way first.
_DRAWN = {"image/svg+xml": "_repr_svg_", "text/html": "_repr_html_"}
# JupyterLab sets the columns of a table apart, but not of one in a widget.
_STYLE = "<style>.labkit-varied td{padding:0 14px 0 0;line-height:1.7}</style>"


def _drawn(result: object) -> dict[str, str]:
    """``result`` as a notebook would show it, by its kind: a picture, else a table; nothing if it is text alone."""
    bundle: dict[str, str] = getattr(result, "_repr_mimebundle_", dict)()
    for kind, method in _DRAWN.items():
        if made := bundle.get(kind) or getattr(result, method, str)():
            return {kind: made}
    return {}


class Varied:
    """A function of a lesson's parameters and what it showed with them: what it printed, and what it returned."""

    def __init__(self, function: Callable[..., object], numbers: dict[str, int]) -> None:
        self.function, self.numbers = function, numbers
        self._language = get_language()
        self._widget: Any = None
        self._run()

    def _run(self) -> None:
        """Run the function; what it raises is the caller's."""
        with redirect_stdout(StringIO()) as printed, using(self._language):
            self.result = self.function(**self.numbers)
            self.drawn = _drawn(self.result)
        said = "" if self.result is None else repr(self.result)
        self.printed = printed.getvalue().rstrip("\n")
        self.text = "\n".join(filter(None, [self.printed, said]))

    def set(self, **numbers: int) -> None:
        """Run the function with other numbers; an error is shown in place of the result."""
        try:
            self.numbers = self.numbers | checked_parameters(numbers)
            self._run()
        except Exception as error:  # the learner's own code: the next move of a slider runs it again
            self.result, self.drawn, self.text = None, {}, f"{type(error).__name__}: {error}"
        if self._widget is not None:
            self._widget.children[-1].value = self._html()

    def _html(self) -> str:
        words = self.printed if self.drawn else self.text  # a picture or a table says what its repr says
        shown = f'<pre style="line-height:1.35;overflow:auto">{escape(words)}</pre>' if words else ""
        drawn = _STYLE + next(iter(self.drawn.values()), "")
        return f'<div role="status" aria-live="polite">{shown}{drawn}</div>'

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if self._widget is None:
            self._widget = self._made()
        return {**live(self._widget), "text/plain": self.text, **self.drawn}

    def _made(self) -> Any:
        import ipywidgets as widgets  # heavy: only a notebook needs it

        sliders = []
        for name, value in self.numbers.items():
            slider = widgets.IntSlider(
                value=value, min=LIMITS[name][0], max=max(_MOST[name], value), continuous_update=False,
                description=_TEXTS[name,].in_language(self._language), style={"description_width": "140px"},
                layout={"width": "560px", "max_width": "100%"},
            )  # fmt: skip
            slider.observe(lambda change, name=name: self.set(**{name: change.new}), "value")
            sliders.append(slider)
        box = widgets.VBox([*sliders, widgets.HTML(self._html())], layout={"max_width": "760px"})
        box.add_class("labkit-varied")
        return box


def vary(function: Callable[..., object], **numbers: int) -> Varied:
    """``function`` run with a lesson's parameters, and sliders that run it with others.

    numbers   num_gpus, batch_size, data_size, num_ranks: those that the function takes, by name.

    What it prints and what it returns is shown. Raises what the function raises with the numbers given here, and
    TypeError or ValueError, naming it, for a number that no lesson has or that is out of range.
    """
    for name in numbers:
        if name not in LIMITS:
            raise TypeError(
                must("numbers", name, en=f"one of {', '.join(LIMITS)}", zh=f"是 {'、'.join(LIMITS)} 之一")
            )
    return Varied(function, checked_parameters(numbers))
