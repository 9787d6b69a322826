"""Predictions as a learner answers them: with the mouse, and with the keyboard alone."""

import pytest

CELLS = [
    "import os\nos.environ['LABKIT_PROGRESS'] = 'off'",
    "import labkit\nlabkit.set_language('{language}')\nfrom labkit.course import predict",
    "predict('03.order')",
    "predict('03.idle', rows=18, gpus=8)",
]
WORDS = {
    "en": ("wrong labels", "Gather joins the pieces", "evenly", "6 pieces hold all 18"),
    "zh": ("错误的标签", "收集按设备的顺序", "尽量平均", "6 个分块就装下了全部 18 行"),
}


@pytest.mark.parametrize(
    ("language", "theme"), [pytest.param("en", "light", marks=pytest.mark.more), ("zh", "dark")]
)
def test_a_prediction_is_clicked_or_typed_and_says_why(lab, shot, language, theme):
    page = lab(
        f"predict-{language}.ipynb", theme=theme, cells=[cell.format(language=language) for cell in CELLS]
    )
    wrong, right, even, reason = WORDS[language]
    clicked, typed = page.locator(".labkit-predict").nth(0), page.locator(".labkit-predict").nth(1)

    buttons = clicked.locator("button")
    buttons.nth(0).click()
    clicked.get_by_text(wrong).wait_for()
    assert buttons.nth(0).is_disabled()
    assert buttons.nth(1).is_enabled()

    # With the keyboard alone: to the next button that can be pressed, and press it.
    buttons.nth(1).focus()
    page.keyboard.press("Enter")
    clicked.get_by_text(right).wait_for()
    assert [buttons.nth(at).is_disabled() for at in range(3)] == [True] * 3

    field = typed.locator("input")
    field.fill("0")
    field.press("Enter")
    typed.get_by_text(even).wait_for()
    field.fill("２")  # as a Chinese keyboard writes it
    field.press("Enter")
    typed.get_by_text(reason).wait_for()
    shot(page.locator(".jp-Notebook"), f"predict-{language}-{theme}")
