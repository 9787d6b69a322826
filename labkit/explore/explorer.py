"""What all explorers share: named state, controls that set it, a picture that follows it.

An explorer does no arithmetic of its own: its picture is made by the plan, the engine and the view from
its state. State is plain attributes: setting one moves the control, moving the control sets it.
"""

from __future__ import annotations

from html import escape
from operator import index

import ipywidgets as widgets

from ..base.language import get_language, set_language
from ..view.picture import Picture
from ..view.svg import to_svg
from .still import still_html


class Explorer:
    """Base of the explorers. A subclass gives ``controls`` and ``drawn``, and says what its state may be.

    limits    for a state that is a whole number: the least and the greatest.
    choices   for any other state: its values, and what each is called.
    unfolds   the state that readers without a kernel can move (see :mod:`labkit.explore.still`).
    """

    limits: dict[str, tuple[int, int]] = {}
    choices: dict[str, tuple[str, ...]] = {}
    unfolds: str = ""

    def __init__(self, **state) -> None:
        self._language = get_language()
        self._state = {name: self._checked(name, value) for name, value in state.items()}
        self._picture = widgets.HTML()
        self._sentence = widgets.HTML()
        self._controls = self.controls()
        for name, control in self._controls.items():
            control.observe(lambda change, name=name: self._moved(name, change.new), "value")
        self.widget = widgets.VBox(
            [*self._controls.values(), *self.helpers(), self._sentence, self._picture],
            layout={"max_width": "760px"},
        )
        self.widget.add_class("labkit-explorer")
        self._show()

    def controls(self) -> dict[str, widgets.Widget]:
        """The control of each state, labelled in the language in use."""
        raise NotImplementedError

    def drawn(self) -> Picture:
        """The picture of the state."""
        raise NotImplementedError

    def helpers(self) -> list[widgets.Widget]:
        """Further widgets, which work on the controls; none by default."""
        return []

    def picture(self) -> str:
        """The picture of the state as SVG text, in the colour of its surroundings."""
        return to_svg(self.drawn())

    def sentence(self) -> str:
        """The picture of the state in words."""
        return self.drawn().description

    def still(self) -> str:
        """The picture for readers without a kernel, on a panel of its own."""
        return to_svg(self._in_own_language(self.drawn), panel=True)

    def stills(self, name: str, values) -> list[tuple[str, str]]:
        """What the control of ``name`` says at each of ``values``, and the picture there; the state stays."""
        before = self._state[name]
        found = []
        try:
            for value in values:
                self._state[name] = value
                found.append((self._called(name, value), self.still()))
        finally:
            self._state[name] = before
        return found

    def __getattr__(self, name: str):
        state = self.__dict__.get("_state", {})
        if name not in state:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}; it has {', '.join(state) or 'no state'}"
            )
        return state[name]

    def __setattr__(self, name: str, value) -> None:
        state = self.__dict__.get("_state", {})
        if name in state:
            self._controls[name].value = self._checked(name, value)
        elif name.startswith("_") or "_picture" not in self.__dict__ or name == "widget":
            super().__setattr__(name, value)
        else:  # a slip of the pen would otherwise move nothing, without a word
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(state)}")

    def slider(self, name: str, label: str) -> widgets.IntSlider:
        """A slider for the state ``name`` within its limits."""
        least, most = self.limits[name]
        return widgets.IntSlider(
            value=self._state[name], min=least, max=most, description=label,
            style={"description_width": "140px"}, layout={"width": "560px"},
        )  # fmt: skip

    def choice(self, name: str, label: str, called: dict[str, str]) -> widgets.Dropdown:
        """A list to choose the state ``name`` from: its values, and what each is called."""
        return widgets.Dropdown(
            value=self._state[name], options=[(words, value) for value, words in called.items()],
            description=label, style={"description_width": "140px"}, layout={"width": "560px"},
        )  # fmt: skip

    def _called(self, name: str, value) -> str:
        options = getattr(self._controls[name], "options", ())
        return next((words for words, other in options if other == value), str(value))

    def _checked(self, name: str, value):
        if name in self.choices:
            if value not in self.choices[name]:
                known = ", ".join(map(repr, self.choices[name]))
                raise ValueError(f"{name} must be one of {known}, got {value!r}")
            return value
        least, most = self.limits[name]
        try:
            number = None if isinstance(value, bool) else index(value)
        except TypeError:
            number = None
        if number is None:
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if not least <= number <= most:
            raise ValueError(f"{name} must be from {least} to {most}, got {number}")
        return number

    def _moved(self, name: str, value) -> None:
        self._state[name] = value
        self._show()

    def _show(self) -> None:
        drawn = self._in_own_language(self.drawn)
        self._sentence.value = (
            f'<div class="labkit-sentence" aria-live="polite">{escape(drawn.description)}</div>'
        )
        self._picture.value = to_svg(drawn)

    def _in_own_language(self, make):
        """What ``make()`` gives in the language the explorer was made in, whatever the notebook did later."""
        before = get_language()
        set_language(self._language)
        try:
            return make()
        finally:
            set_language(before)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._state.items())})"
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        bundle = self.widget._repr_mimebundle_() or {}
        # JupyterLab shows the widget; an exported page the HTML, in which one control still moves; a PDF the picture.
        return {
            **bundle,
            "text/plain": repr(self),
            "text/html": still_html(self),
            "image/svg+xml": self.still(),
        }
