"""Sliders for a lesson's parameters, which run a function again with other numbers.

``vary(function, num_gpus=num_gpus, batch_size=batch_size)`` as the last line of a cell runs the function with the
parameters. A running notebook shows a slider for each above the output; otherwise the output alone is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from html import escape
from io import StringIO
from typing import Any

from labkit.base.language import get_language, using
from labkit.base.texts import texts_beside
from labkit.base.widgets import live

from .parameters import LIMITS, checked_parameters

_TEXTS = texts_beside(__file__)

# The greatest value of a slider, unless the parameter is greater: enough to explore, less than LIMITS.
_MOST = {"num_gpus": 8, "batch_size": 64, "data_size": 200, "num_ranks": 8}
# MIME types for display in a notebook with the methods, in order of preference.
_DRAWN = {"image/svg+xml": "_repr_svg_", "text/html": "_repr_html_"}
# JupyterLab adds space between columns of a table, but not inside a widget.
_STYLE = "<style>.labkit-varied td{padding:0 14px 0 0;line-height:1.7}</style>"


def _graphics(result: object) -> dict[str, str]:
    """Return ``result`` as an SVG picture, or else as HTML, by MIME type; {} if it has neither."""
    bundle: dict[str, str] = getattr(result, "_repr_mimebundle_", dict)()
    for kind, method in _DRAWN.items():
        if made := bundle.get(kind) or getattr(result, method, str)():
            return {kind: made}
    return {}


class VariedFunction:
    """A function of a lesson's parameters, with printed output and result."""

    def __init__(self, function: Callable[..., object], numbers: dict[str, int]) -> None:
        self.function, self.numbers = function, numbers
        self._language = get_language()
        self._widget: Any = None
        self._run()

    def _run(self) -> None:
        """Run the function and store printed text and result."""
        with redirect_stdout(StringIO()) as printed, using(self._language):
            self.result = self.function(**self.numbers)
            self.drawn = _graphics(self.result)
        said = "" if self.result is None else repr(self.result)
        self.printed = printed.getvalue().rstrip("\n")
        self.text = "\n".join(filter(None, [self.printed, said]))

    def set(self, **numbers: int) -> None:
        """Run the function with other numbers; show an error in place of the result."""
        try:
            self.numbers = self.numbers | checked_parameters(numbers)
            self._run()
        except Exception as error:  # from the learner's code
            self.result, self.drawn, self.text = None, {}, f"{type(error).__name__}: {error}"
        if self._widget is not None:
            self._widget.children[-1].value = self._html()

    def _html(self) -> str:
        words = self.printed if self.drawn else self.text  # a picture or table replaces the repr
        shown = f'<pre style="line-height:1.35;overflow:auto">{escape(words)}</pre>' if words else ""
        drawn = f'{_STYLE}<div class="labkit-view">{next(iter(self.drawn.values()), "")}</div>'
        return f'<div role="status" aria-live="polite">{shown}{drawn}</div>'

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if self._widget is None:
            self._widget = self._build_widget()
        return {**live(self._widget), "text/plain": self.text, **self.drawn}

    def _build_widget(self) -> Any:
        import ipywidgets as widgets  # heavy: only a notebook needs it

        sliders = []
        for name, value in self.numbers.items():
            slider = widgets.IntSlider(
                value=value, min=LIMITS[name][0], max=max(_MOST[name], value), continuous_update=False,
                description=_TEXTS[name].in_language(self._language), style={"description_width": "140px"},
                layout={"width": "560px", "max_width": "calc(100% - 4px)"},  # less its margins
            )  # fmt: skip
            slider.observe(lambda change, name=name: self.set(**{name: change.new}), "value")
            sliders.append(slider)
        box = widgets.VBox([*sliders, widgets.HTML(self._html())], layout={"max_width": "760px"})
        box.add_class("labkit-varied")
        return box


def vary(function: Callable[..., object], **numbers: int) -> VariedFunction:
    """Run ``function`` with a lesson's parameters, and show printed output, result, and sliders for other numbers.

    numbers   the function's parameters by name: num_gpus, batch_size, data_size, num_ranks.

    Raises the function's own errors, and TypeError or ValueError for an unknown parameter or a value out of range.
    """
    return VariedFunction(function, checked_parameters(numbers))
