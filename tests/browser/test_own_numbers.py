"""A learner's own numbers, and cells out of order, in a real browser with the keyboard alone."""

import re

import pytest

from .test_explorers import ARROW, HIDDEN

CELLS = [
    "import os\nos.environ['LABKIT_PROGRESS'] = 'off'",
    "import labkit\nfrom labkit.course import begin, predict, vary\n"
    "begin('03_split', num_gpus=4, batch_size=10, data_size=20, language='{language}')",
    "predict('03.idle', rows=18, gpus=8)",
    "def seen(num_gpus):\n    print(num_gpus, 'here')\n    return labkit.split(10, max(num_gpus, 1))\n\n"
    "vary(seen, num_gpus=num_gpus)",
    "num_gpus = 4",
]
WORDS = {"en": "rows on", "zh": "行分给"}


@pytest.mark.parametrize(
    ("language", "theme"), [("en", "dark"), pytest.param("zh", "light", marks=pytest.mark.more)]
)
def test_other_numbers_by_keyboard(lab, shot, language, theme):
    cells = [CELLS[0], CELLS[4], *(cell.format(language=language) for cell in CELLS[1:4])]
    page = lab(f"own-{language}.ipynb", theme=theme, cells=cells)
    asked, varied = page.locator(".labkit-predict"), page.locator(".labkit-varied")
    rows_on = WORDS[language]
    question = asked.get_by_text(re.compile(f"18 {rows_on} 8"))
    question.wait_for()
    again = asked.locator("button").nth(1)
    assert not again.is_visible()
    field = asked.locator("input")
    field.fill("0")
    field.press("Enter")
    again.wait_for(state="visible")
    again.focus()
    page.keyboard.press("Enter")
    question.wait_for(state="detached")
    asked.get_by_text(re.compile(f"\\d+ {rows_on} \\d+")).wait_for()
    assert field.input_value() == ""
    assert again.evaluate("e => e === document.activeElement"), "the keyboard stays where it was pressed"

    varied.get_by_text("4 here").wait_for()
    varied.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    varied.get_by_text("5 here").wait_for()
    varied.locator("svg").wait_for()
    shot(page.locator(".jp-Notebook"), f"own-{language}-{theme}")
    picture = varied.locator("svg").bounding_box()["width"]
    page.set_viewport_size(
        {"width": 390, "height": 1600}
    )  # a phone: labels above sliders; the picture keeps its size
    page.keyboard.press("Control+b")  # no file browser
    page.wait_for_function("document.querySelector('.labkit-varied .noUi-target').clientWidth > 150")
    assert varied.locator("svg").bounding_box()["width"] >= picture * 0.95
    assert varied.evaluate(HIDDEN) == 0, "the picture scrolls, not the sliders"
    assert varied.locator(".labkit-view").evaluate(HIDDEN) > 100
    assert varied.locator(".labkit-view").evaluate(ARROW) == "1"


def test_a_cell_run_before_its_turn_is_told_which_one_comes_first(lab, server):
    _, root = server
    notebook = "notebooks/zh/03_split.ipynb"
    page = lab("notebooks/zh/early.ipynb", cells=[
        CELLS[4], CELLS[1].format(language="zh"), "try_it = 3\nmodel(try_it)",
    ])  # fmt: skip
    assert (root / notebook).exists(), "the word is about the lesson beside it"
    page.get_by_text("“最后一个批次会打印什么？”一节里以").wait_for()
    assert "NameError" in page.locator(".jp-Notebook").inner_text()
