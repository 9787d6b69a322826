"""What all explorers share: named state, controls that set it, a picture that follows it.

An explorer does no arithmetic of its own: its picture is made by the plan, the engine and the view from
its state. State is plain attributes: setting one moves the control, moving the control sets it.
"""

from __future__ import annotations

from html import escape
from operator import index

import ipywidgets as widgets

from ..language import get_language, set_language


class Explorer:
    """Base of the explorers. A subclass gives ``limits``, ``controls``, ``picture``, ``sentence``, ``still``."""

    limits: dict[str, tuple[int, int]] = {}

    def __init__(self, **state: int) -> None:
        self._language = get_language()
        self._state = {name: self._checked(name, value) for name, value in state.items()}
        self._picture = widgets.HTML()
        self._sentence = widgets.HTML()
        self._controls = self.controls()
        for name, control in self._controls.items():
            control.observe(lambda change, name=name: self._moved(name, change.new), "value")
        self.widget = widgets.VBox(
            [*self._controls.values(), self._sentence, self._picture], layout={"max_width": "760px"}
        )
        self.widget.add_class("labkit-explorer")
        self._show()

    def __getattr__(self, name: str) -> int:
        state = self.__dict__.get("_state", {})
        if name not in state:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}; it has {', '.join(state) or 'no state'}"
            )
        return state[name]

    def __setattr__(self, name: str, value) -> None:
        if name in self.__dict__.get("_state", {}):
            self._controls[name].value = self._checked(name, value)
        else:
            super().__setattr__(name, value)

    def slider(self, name: str, label: str) -> widgets.IntSlider:
        """A slider for the state ``name`` within its limits."""
        least, most = self.limits[name]
        return widgets.IntSlider(
            value=self._state[name], min=least, max=most, description=label,
            style={"description_width": "140px"}, layout={"width": "560px"},
        )  # fmt: skip

    def _checked(self, name: str, value) -> int:
        least, most = self.limits[name]
        try:
            number = index(value)
        except TypeError:
            raise TypeError(f"{name} must be a whole number, got {value!r}") from None
        if not least <= number <= most:
            raise ValueError(f"{name} must be from {least} to {most}, got {number}")
        return number

    def _moved(self, name: str, value: int) -> None:
        self._state[name] = value
        self._show()

    def _show(self) -> None:
        # The explorer keeps the language it was made in, whatever the notebook does later.
        before = get_language()
        set_language(self._language)
        try:
            self._sentence.value = (
                f'<div class="labkit-sentence" aria-live="polite">{escape(self.sentence())}</div>'
            )
            self._picture.value = self.picture()
        finally:
            set_language(before)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._state.items())})"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        bundle = self.widget._repr_mimebundle_() or {}
        # JupyterLab shows the widget; readers without a kernel (GitHub, nbviewer, a PDF) the picture.
        return {**bundle, "text/plain": repr(self), "image/svg+xml": self.still()}
