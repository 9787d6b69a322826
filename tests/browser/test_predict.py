"""Predictions as a learner answers them: with the mouse, and with the keyboard alone."""

from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]


# The contrast of every button's words with what is behind them, as WCAG counts it, paleness included.
CONTRAST = """box => [...box.querySelectorAll('button')].filter(b => b.offsetWidth).map(button => {
  const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const seen = (...layers) => {
    for (const [colour, alpha] of layers) {
      paint.globalAlpha = alpha; paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const style = getComputedStyle(button), behind = [];
  for (let e = button.parentElement; e; e = e.parentElement)
    behind.unshift([getComputedStyle(e).backgroundColor, 1]);
  const back = [['#fff', 1], ...behind, [style.backgroundColor, +style.opacity]];
  const [a, b] = [seen(...back), seen(...back, [style.color, +style.opacity])].sort((a, b) => b - a);
  return [button.textContent, (a + 0.05) / (b + 0.05)]; })"""

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


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.more)])
def test_every_button_can_be_read_in_every_state(lab, shot, theme):
    page = lab(
        f"contrast-{theme}.ipynb",
        theme=theme,
        cells=[CELLS[0], CELLS[1].format(language="en"), *CELLS[2:], "predict('00.mix')"],
    )
    open_, typed, done = (page.locator(".labkit-predict").nth(at) for at in range(3))
    open_.locator("button").nth(0).click()  # one wrong, two open
    open_.get_by_text("wrong labels").wait_for()
    typed.locator("input").fill("2")
    typed.locator("input").press("Enter")
    typed.get_by_text("6 pieces hold all 18").wait_for()
    for at, said in ((0, "hidden copy in every step"), (2, "must say which")):  # wrong, never pressed, right
        done.locator("button").nth(at).click()
        done.get_by_text(said).wait_for()
    done.locator("button.mod-success").wait_for()
    page.mouse.move(0, 0)
    found = [pair for box in (open_, typed, done) for pair in box.evaluate(CONTRAST)]
    shot(page.locator(".jp-Notebook"), f"contrast-{theme}")
    assert len(found) == 8
    assert [pair for pair in found if pair[1] < 4.5] == []
    done.locator("button").nth(1).hover(force=True)
    assert min(ratio for _, ratio in done.evaluate(CONTRAST)) >= 4.5


def test_a_fold_says_to_answer_first_until_the_question_is_answered(lab):
    """The lesson's own text, in JupyterLab, which takes out of Markdown what it does not trust."""
    lesson = nbformat.read(ROOT / "notebooks" / "zh" / "03_split.ipynb", as_version=4)
    fold = next(cell.source for cell in lesson.cells if cell.id == "exercise-text")
    page = lab("fold.ipynb", cells=[CELLS[0], CELLS[1].format(language="zh"), "predict('03.order')", fold])
    title, reason = (
        page.locator("summary", has_text="为什么"),
        page.locator("details p", has_text="由线程决定"),
    )
    assert title.inner_text() == "先作答，再打开：为什么"
    assert not reason.is_visible()
    buttons = page.locator(".labkit-predict button")
    buttons.nth(1).click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('summary')].some(e => e.innerText === '为什么')"
    )
    title.click()
    reason.wait_for()
