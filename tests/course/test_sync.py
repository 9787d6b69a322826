"""What is stored of a lesson does not depend on its kernel, and the questions of part two are sound."""

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit_course.notebooks.execute import strip_volatile
from tools.author import questions, sync

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_where_a_kernel_cuts_the_printed_text_is_not_stored():
    stream = [("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c\n"), ("stdout", "d\n"), ("stdout", "e\n")]
    outputs = [new_output("stream", name=name, text=text) for name, text in stream]
    shown = [new_output("display_data", data={"text/plain": text}) for text in "xy"]
    cell = new_code_cell("show()", outputs=[*outputs[:2], *shown, *outputs[2:]])
    strip_volatile(new_notebook(cells=[new_markdown_cell("text"), cell]))
    assert [output.get("text", output.get("data")) for output in cell.outputs] == [
        "a\nb\n", {"text/plain": "x"}, {"text/plain": "y"}, "c\n", "d\ne\n",
    ]  # fmt: skip


@pytest.mark.parametrize("lesson", [name for name in sync.lessons(NOTEBOOKS) if name >= "10"])
def test_questions_of_part_two_are_sound(lesson):
    assert questions.problems(sync.read(NOTEBOOKS, "en", lesson).cells) == []
