"""The base of all explorers: state, controls that set the state, and a picture of it.

An explorer computes nothing itself: the plan, the engine and the view make its picture from the state. State is plain
attributes: setting one moves the control, and moving the control sets the attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import ipywidgets as widgets

from ..base.language import get_language, say, using
from ..base.numbers import integer, one_of
from ..base.texts import texts_beside
from ..base.widgets import PAGE_STYLE, live
from ..view.picture import Picture
from ..view.svg import to_svg
from .static import Control, static_html

_Found = TypeVar("_Found")
_LABELS = texts_beside(__file__)  # labels of the controls
_WIDTH = "min(140px, 36%)"  # width of labels
_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)  # half of the slider for what one machine has
# ipywidgets draws the arrow of a list black, in the dark too.
_ARROW = (
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='-4 -6 18 18'%3E"
    "%3Cpath d='M1 1l4 4 4-4' fill='none' stroke='white'/%3E%3C/svg%3E"
)
_STYLE = (
    f"{PAGE_STYLE}<style>.labkit-explorer svg{{min-width:460px}}"
    "[data-jp-theme-light=false] .labkit-explorer select"
    f'{{background-image:url("data:image/svg+xml,{_ARROW}")}}</style>'
)
# ipywidgets gives no names for screen readers to sliders and to the buttons of Play. HTML in a widget runs no <script>,
# so explorer.html sets the names in an event of an <img>, also for controls that appear later.
_NAMES = Path(__file__).with_suffix(".html").read_text("utf-8").rstrip()


class Explorer:
    """Base of the explorers. A subclass defines :meth:`make_picture` and the values of its state.

    limits    the least and the greatest value of each integer state, moved by a slider.
    choices   the values of each other state, in a list.
    unfolds   the state that readers of a stored notebook can move without a kernel (see :mod:`labkit.explore.static`).
    stays     states that are fixed in static HTML: each value would multiply the number of pictures.
    even      states whose kept values are evenly spaced in static HTML; otherwise small values are closer together.
    plays     the state that a Play button runs through; "" for none.
    powers    states that are exponents of 2: their sliders show the power, 64 for 6.
    counts    states that are numbers of GPUs, 1 to 64: their sliders offer 1 to 8 and a few larger numbers.
    labels    state -> entry of explorer.txt, if not the state's own name.
    """

    limits: dict[str, tuple[int, int]] = {}
    choices: dict[str, tuple[str, ...]] = {}
    unfolds: str = ""
    stays: tuple[str, ...] = ()
    even: tuple[str, ...] = ()
    plays: str = ""
    powers: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    labels: dict[str, str] = {}

    def __init__(self, **state: Any) -> None:
        self._language = get_language()
        self._state: dict[str, Any] = {}
        for name, value in state.items():  # one by one: allowed values may depend on earlier states
            self._state[name] = self._check_state(name, value)
        self._picture = widgets.HTML()
        self._sentence = widgets.HTML()
        self._controls = self._make_controls()
        for name, control in self._controls.items():
            control.observe(lambda change, name=name: self._on_change(name, change.new), "value")
        self._play = self._make_play() if self.plays else None
        rows = [self._in_line(self._play)] if self._play else []
        self.widget = widgets.VBox(
            [*self._controls.values(), *rows, self._sentence, self._picture, self._make_page()],
            layout={"max_width": "760px", "width": "100%"},
        )
        self.widget.add_class("labkit-explorer")
        self._show()

    def option_labels(self, name: str) -> dict[str, str]:
        """Return the labels of the choice ``name``: from explorer.txt, or the values themselves."""
        return {value: str(_LABELS.get((name, value), value)) for value in self.choices[name]}

    def make_picture(self) -> Picture:
        """Make the picture of the state."""
        raise NotImplementedError

    def span(self, name: str) -> tuple[int, int]:
        """Return the least and greatest value of the state ``name`` now; a subclass may compute them from other
        states.
        """
        return self.limits[name]

    def picture(self) -> str:
        """Return the picture of the state as SVG text."""
        return to_svg(self.make_picture(), panel=True)

    def sentence(self) -> str:
        """Return the picture's description in words."""
        return self.make_picture().description

    def __getattr__(self, name: str) -> Any:
        state = self.__dict__.get("_state", {})
        if name not in state:
            raise AttributeError(self._has_no(name))
        return state[name]

    def __setattr__(self, name: str, value: Any) -> None:
        state = self.__dict__.get("_state", {})
        if name in state:
            value, control = self._check_state(name, value), self._controls[name]
            if name in self.counts and value not in (held for _, held in control.options):
                control.options = self._slider_options(name, value)  # selects the first option
            control.value = value
        elif (
            name.startswith("_") or name == "widget" or "_picture" not in self.__dict__
        ):  # still in a subclass's __init__
            super().__setattr__(name, value)
        else:  # a misspelt name would silently move nothing
            raise AttributeError(self._has_no(name))

    def _has_no(self, name: str) -> str:
        kind, listed = type(self).__name__, ", ".join(self.__dict__.get("_state", {}))
        return say(
            en=f"{kind} has no {name!r}; it has {listed or 'no state'}",
            zh=f"{kind} 没有 {name!r}；" + (f"它有 {listed}" if listed else "它没有状态"),
        )

    def _make_controls(self) -> dict[str, widgets.Widget]:
        """Make a slider or a list for each state."""
        made = {}
        for name, value in self._state.items():
            label = str(_LABELS[self.labels.get(name, name)])
            look = {
                "value": value, "description": label, "style": {"description_width": _WIDTH},
                "layout": {"width": "auto", "max_width": "560px"}, "tooltip": label,
            }  # fmt: skip
            if name in self.choices:
                options = [(words, value) for value, words in self.option_labels(name).items()]
                made[name] = widgets.Dropdown(options=options, **look)
            elif name in self.powers + self.counts:
                made[name] = widgets.SelectionSlider(options=self._slider_options(name, value), **look)
                # It takes no typed number, so the page makes what it shows read-only.
                made[name].add_class("labkit-steps")
            else:
                least, most = self.span(name)
                made[name] = widgets.IntSlider(min=least, max=most, **look)
        return made

    def _slider_options(self, name: str, value: int | None = None) -> list[tuple[str, int]]:
        """Return what the slider of ``name`` shows and the state it sets: powers of 2, or counts, ``value`` too."""
        least, most = self.span(name)
        if name in self.counts:
            shown = {count for count in (*_COUNTS, value or least) if least <= count <= most}
            return [(str(count), count) for count in sorted(shown)]
        return [(str(2**exponent), exponent) for exponent in range(least, most + 1)]

    def _make_play(self) -> widgets.Play:
        """Make play, pause, stop and repeat buttons; the browser moves the slider with them."""
        name, (least, most) = self.plays, self.span(self.plays)
        # A slider of powers is linked by its index, which begins with 0.
        trait, first = ("index", least) if name in self.powers else ("value", 0)
        play = widgets.Play(
            value=self._state[name] - first, min=least - first, max=most - first, interval=1500
        )
        play.add_class("labkit-play")
        # Kept alive: the link ends with its object.
        self._link = widgets.jslink((play, "value"), (self._controls[name], trait))
        return play

    def _make_page(self) -> widgets.HTML:
        """Return the style and script that the page needs once, invisible."""
        buttons = say(en="Play or pause|Back to the start|Repeat", zh="播放或暂停|回到开头|循环")
        return widgets.HTML(_STYLE + _NAMES.replace("PLAY", buttons), layout={"display": "none"})

    def _in_line(self, control: widgets.Widget) -> widgets.HBox:
        """Put a label before a control that has none, in line with the others."""
        layout = {
            "width": _WIDTH, "margin": "2px 8px 2px 2px", "display": "flex", "justify_content": "flex-end",
        }  # fmt: skip
        return widgets.HBox([widgets.Label(say(en="Play", zh="播放"), layout=layout), control])

    def _check_state(self, name: str, value: Any) -> Any:
        if name not in self.choices:
            return integer(name, value, *self.span(name))
        return one_of(name, value, self.choices[name])

    def _on_change(self, name: str, value: Any) -> None:
        self._state[name] = value
        for other, control in self._controls.items():
            if other in self.powers:
                options = self._slider_options(other)
                if len(control.options) != len(options):
                    kept = min(self._state[other], options[-1][1])
                    control.options = options  # selects the first option
                    control.value = kept
            elif hasattr(control, "max") and (control.min, control.max) != self.span(other):
                control.min, control.max = self.span(other)  # which moves the control if it is beyond
                if other == self.plays and self._play:
                    self._play.max = control.max
        self._show()

    def _show(self) -> None:
        picture = self._in_own_language(self.make_picture)
        self._sentence.value = (
            f'<div class="labkit-sentence" aria-live="polite">{escape(picture.description)}</div>'
        )
        self._picture.value = f'<div class="labkit-view">{to_svg(picture, panel=True)}</div>'

    def _in_own_language(self, make: Callable[[], _Found]) -> _Found:
        """Call ``make()`` in the language that the explorer was made in; the notebook may use another by now."""
        with using(self._language):
            return make()

    def html(self, *, most: int = 300, budget: int = 90_000) -> str:
        """Return the explorer as HTML whose controls work without a kernel, for a page of your own.

        most     the most pictures to make; sliders keep as many values as that allows.
        budget   the most characters they may take.
        """
        moving = tuple(name for name in self._state if name not in self.stays)
        return self._static_html(moving, most=most, budget=budget)

    def _static_html(self, names: tuple[str, ...], **bounds: int) -> str:
        """Return the explorer as static HTML: the controls ``names`` move, the others and the state stay."""
        before = dict(self._state)
        controls = []
        for name in names:
            called = {value: words for words, value in getattr(self._controls[name], "options", ())}
            least, most = (0, 0) if called else self.span(name)
            controls.append(
                Control(
                    self._controls[name].description, list(called) or range(least, most + 1), before[name],
                    called, name in self.choices, name in self.even, 4 if name == self.unfolds else 1,
                )
            )  # fmt: skip

        def draw_state(values: tuple[Any, ...]) -> str:
            self._state.update(zip(names, values, strict=True))
            for name in self.limits:  # the limits of one can depend on others
                if name in self._state:
                    self._state[name] = min(self._state[name], self.span(name)[1])
            return self._in_own_language(self.picture)

        try:
            return static_html(controls, draw_state, self._in_own_language(self.sentence), **bounds)
        finally:
            self._state.update(before)

    def __repr__(self) -> str:
        state = ", ".join(f"{name}={value!r}" for name, value in self._state.items())
        return f"{type(self).__name__}({state})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        # JupyterLab shows the widget; an exported page the HTML, in which one control still moves; a PDF the picture.
        return {
            **live(self.widget),
            "text/plain": repr(self),
            "text/html": self._static_html((self.unfolds,)),
            "image/svg+xml": self._in_own_language(self.picture),
        }
