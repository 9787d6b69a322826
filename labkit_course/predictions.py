"""Predictions: questions answered by a click or a typed value before the next cell runs.

``predict(id)`` as the last line of a cell shows the question. A question with numbers can be asked again with others.
Without a kernel (GitHub, a PDF) or a reader (papermill, nbval) question and choices are plain text, and no cell waits.
The keyboard works too: Tab and Enter, or ``check(id, answer)``.
"""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.base.extras import need
from labkit.base.language import get_language, using
from labkit.base.texts import texts_beside
from labkit.base.widgets import PAGE_STYLE, live

from .answers import ShownVerdict, check
from .exercise import Exercise, find
from .verdict_html import COLOURS, as_html

_TEXTS = texts_beside(__file__)

# Let long buttons wrap on narrow pages, and keep the contrast of answered buttons, which ipywidgets would make pale.
_STYLE = f"""<style>.labkit-predict button{{height:auto;min-height:28px;white-space:normal;text-align:left;\
line-height:1.4;padding:4px 12px;width:fit-content;max-width:100%}}
.labkit-predict .widget-hbox button{{flex:none;white-space:nowrap}}
.labkit-predict .widget-hbox .widget-text{{flex:0 1 auto;min-width:0}}
.labkit-predict .widget-html-content{{line-height:1.5}}
.labkit-predict .jupyter-button:disabled{{opacity:1;color:var(--jp-ui-font-color1,#222);border:1px dashed}}
.labkit-predict .jupyter-button.mod-success:disabled{{background:{COLOURS[True]};color:#fff;border:0}}
.labkit-predict .jupyter-button.mod-warning:disabled{{background:{COLOURS[False]};color:#fff;border:0}}</style>"""

# Hides the words "Answer first" on the folded reason further down in the lesson.
_ANSWERED = "<style>.labkit-{}{{display:none}}</style>"


class Prediction:
    """A question and the learner's answer, shown as buttons or as a text field."""

    def __init__(self, name: str, facts: dict[str, int]) -> None:
        self.exercise: Exercise = find(name)
        self.name, self.facts = name, self.exercise.complete_facts(facts)
        if not self.exercise.asks:
            raise ValueError(f"exercise {name!r} has no question to predict; its answers go to check()")
        self.verdict: ShownVerdict | None = None
        self._language = get_language()
        self._widget: Any = None

    @property
    def question(self) -> str:
        """The question in the current language."""
        return self.exercise.question(**self.facts)

    @property
    def choices(self) -> list[str]:
        """The choices to click, or [] if the answer is typed."""
        return self.exercise.choices()

    def answer(self, given: object) -> ShownVerdict:
        """Judge ``given``: a value, or the number of a choice, from 1."""
        with using(self._language):
            self.verdict = check(self.name, given, **self.facts)
        return self.verdict

    def __repr__(self) -> str:
        ways = [f"  {number}  {words}" for number, words in enumerate(self.choices, 1)]
        facts = "".join(f", {name}={value}" for name, value in self.facts.items())
        call = f"check({self.name!r}, …{facts})"
        typed = _TEXTS["type"].fill({"call": call, "wanted": self.exercise.kind.wanted})
        return "\n".join([self.question, *ways, _TEXTS["click"](call=call) if ways else str(typed)])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if self._widget is None:
            self._widget = self._build_widget()
        return {**live(self._widget), "text/plain": repr(self)}

    def _build_widget(self) -> Any:
        need("ipywidgets")
        import ipywidgets as widgets  # heavy: only a notebook needs it

        asked = widgets.VBox()
        again = widgets.Button(description=_TEXTS["again"](), icon="refresh")
        again.layout.display = "none"
        again.on_click(lambda _: self._redraw(widgets, asked, again))
        self._ask(widgets, asked, again)
        # Keep the button outside of `asked`, so that it keeps the keyboard focus for the next question.
        box = widgets.VBox([asked, again], layout={"max_width": "760px"})
        box.add_class("labkit-predict")
        return box

    def ask_again(self, random: Random | None = None) -> None:
        """Draw other numbers for the question; only for exercises with ``fresh``."""
        assert self.exercise.code.fresh is not None
        random, before = random or Random(), self.facts
        while self.facts == before:
            self.facts = self.exercise.complete_facts(self.exercise.code.fresh(random))

    def _redraw(self, widgets: Any, asked: Any, again: Any) -> None:
        self.ask_again()
        self._ask(widgets, asked, again)

    def _ask(self, widgets: Any, asked: Any, again: Any) -> None:
        """Show the current question without an answer."""
        told = widgets.HTML()
        with using(self._language):
            said = widgets.HTML(PAGE_STYLE + _STYLE + f"<div>{as_html(self.question)}</div>")
            made = self._buttons(widgets, told) if self.choices else self._field(widgets, told)
        if self.exercise.code.fresh:  # show the button "again" after the first answer
            told.observe(lambda _: setattr(again.layout, "display", None), "value")
        asked.children = [said, made, told]

    def _buttons(self, widgets: Any, told: Any) -> Any:
        buttons = [widgets.Button(description=words.replace("`", "")) for words in self.choices]
        for number, button in enumerate(buttons, 1):
            button.on_click(lambda button, number=number: self._handle_click(buttons, button, number, told))
        return widgets.VBox(buttons)

    def _handle_click(self, buttons: list[Any], button: Any, number: int, told: Any) -> None:
        verdict = self.answer(number)
        button.button_style, button.icon = ("success", "check") if verdict.right else ("warning", "times")
        button.disabled = True
        for other in buttons if verdict.right else ():
            other.disabled = True
        self._tell(told, verdict)

    def _field(self, widgets: Any, told: Any) -> Any:
        wanted = str(self.exercise.kind.wanted).replace("`", "")
        field = widgets.Text(placeholder=wanted, continuous_update=False)
        button = widgets.Button(description=_TEXTS["answer"]())
        last = [""]

        def submit(_: object) -> None:
            text = field.value.strip()
            if text and text != last[0]:  # leaving the field and clicking the button both fire
                last[0] = text
                self._tell(told, self.answer(text))

        field.observe(submit, "value")
        button.on_click(submit)
        return widgets.HBox([field, button])

    def _tell(self, told: Any, verdict: ShownVerdict) -> None:
        with using(self._language):
            said = f'<div role="status" aria-live="polite">{verdict._repr_html_()}</div>'
        told.value = said + _ANSWERED.format(self.name.replace(".", "-")) * (verdict.right is not None)


def predict(exercise: str, **facts: int) -> Prediction:
    """Return the question of ``exercise``, to be answered before the next cell runs.

    facts   the numbers of the question: ``predict("03.idle", rows=21, gpus=6)``.

    Raises ValueError or TypeError for an unknown exercise or fact.
    """
    return Prediction(exercise, facts)
