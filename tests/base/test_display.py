"""Widgets as outputs, by the ipywidgets of today and by the one that Colab has."""

from ipywidgets import HTML

from labkit.base.widgets import live

VIEW = "application/vnd.jupyter.widget-view+json"


def test_a_widget_is_shown_as_ipywidgets_shows_it():
    widget = HTML("x")
    assert live(widget)[VIEW]["model_id"] == widget.model_id


def test_a_widget_of_ipywidgets_7_is_shown_too():
    """It has no _repr_mimebundle_: it displays itself, which an object that holds one cannot."""

    class Seven:
        model_id = "abc"

    assert live(Seven()) == {VIEW: {"version_major": 2, "version_minor": 0, "model_id": "abc"}}
