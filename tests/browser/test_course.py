"""Exercises and progress as a learner sees them, in a real browser."""

import pytest

CELLS = [
    "import os\nfrom pathlib import Path\nos.environ['LABKIT_PROGRESS'] = str(Path('progress-{name}.json').resolve())",
    "import labkit\nlabkit.set_language('{language}')\nfrom labkit.course import Progress, check",
    "Progress()",
    "check('03.idle', None)",
    "check('03.idle', 0)",
    "check('03.idle', 3)",
]
WORDS = {
    "en": ("Not answered yet", "divided evenly", "Right.", "Show the answer", "5 pieces hold all 10"),
    "zh": ("还没有作答", "只有尽量平均地分才会这样", "正确。", "查看答案", "5 个分块就装下了全部 10 行"),
}  # fmt: skip


# The number of lines on which the text of an element stands.
LINES = """element => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return new Set([...range.getClientRects()].map(box => box.top)).size;
}"""


@pytest.mark.parametrize(
    ("language", "theme"), [("en", "light"), pytest.param("zh", "dark", marks=pytest.mark.more)]
)
def test_an_answer_gets_its_verdict_and_moves_the_board(lab, shot, language, theme):
    fill = {"name": f"{language}-{theme}", "language": language}
    page = lab(f"answers-{language}.ipynb", theme=theme, cells=[cell.format(**fill) for cell in CELLS])
    verdicts = page.locator(".jp-OutputArea-output:has(div[style*='border-left'])")
    nothing, hint, right, title, solution = WORDS[language]
    page.get_by_text(right).wait_for()
    assert verdicts.count() == 3
    for number, words in enumerate((nothing, hint, right)):
        assert words in verdicts.nth(number).inner_text()

    # The board above was shown before the answer was given: it has followed.
    board = page.locator(".labkit-progress")
    board.locator("summary").click()
    lesson = board.locator("tr", has_text="03 ·")
    lesson.get_by_text("◐").wait_for()  # the first answer was wrong
    assert f"progress-{language}-{theme}.json" in board.inner_text()
    # Where room is short, neither the most marks nor the words above them are broken into two lines.
    board.evaluate("board => board.style.width = '36em'")
    cells = board.locator("th, td[title]").all()
    assert {cell.evaluate(LINES) for cell in cells} == {0, 1}  # 0: a heading without words

    folded = verdicts.nth(1).get_by_text(solution)
    assert not folded.is_visible()
    verdicts.nth(1).get_by_text(title).click()
    folded.wait_for(state="visible")
    shot(page.locator(".jp-Notebook"), f"answers-{language}-{theme}")


def test_the_index_leads_to_the_lessons(lab, shot):
    page = lab("notebooks/zh/index.ipynb")
    shot(page.locator(".jp-Notebook"), "index-zh")
    page.get_by_role("link", name="03 · 哪些行归谁？").click()
    page.get_by_role("heading", name="03 · 哪些行归谁？").wait_for()
