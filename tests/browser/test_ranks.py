"""%%ranks in JupyterLab: output by rank, an error, a deadlock, and a breakpoint answered in the page."""

import re

import pytest
from playwright.sync_api import expect

CELLS = [
    "import labkit\nlabkit.set_language('{language}')",
    "%%ranks 4 --timeline\nimport torch\nimport torch.distributed as dist\n"
    "x = torch.ones(2, device=device) * rank\nprint('before', x.tolist())\ndist.all_reduce(x)\nx",
    "%%ranks\nrank * 10",
]
FAILING = {
    "deadlock": "%%ranks\nif rank:\n    dist.all_reduce(x)\n    x.tolist()",
    "breakpoint": "%%ranks\nif rank == 1:\n    breakpoint()\n    y = 5\ndist.all_reduce(x)\nx.tolist()",
}
WORDS = {"en": ("wait for rank 0 in all_reduce", "Rank 2 of 4"), "zh": ("在等 rank 0", "这是 rank 2 的错误")}


@pytest.mark.parametrize(
    ("language", "theme"), [pytest.param("en", "light", marks=pytest.mark.more), ("zh", "dark")]
)
def test_ranks_in_a_page(lab, shot, language, theme):
    cells = [cell.format(language=language) if "{language}" in cell else cell for cell in CELLS]
    page = lab(f"ranks-{language}.ipynb", theme=theme, cells=[*cells, "1", "2", "3"])
    page.set_default_timeout(90_000)  # the kernel imports torch first
    page.get_by_text("rank 3 │ before [3.0, 3.0]").first.wait_for()
    values = page.locator(".labkit-ranks")
    assert "0–3" in values.nth(0).inner_text()
    assert "tensor([6., 6.], device='cuda:0–3')" in values.nth(0).inner_text()
    boxes = [values.nth(1).locator("> div").nth(k).bounding_box() for k in range(4)]
    assert len({round(box["y"]) for box in boxes}) == 1, "side by side"
    assert page.locator(".jp-RenderedSVG img").count() == 1

    def ask(at, code):
        cell = page.locator(".jp-CodeCell").nth(at)
        editor, prompt = cell.locator(".cm-content"), cell.locator(".jp-InputPrompt").first
        before = prompt.inner_text()
        for _ in range(5):  # JupyterLab may lose the focus or the command while it is busy
            editor.click()
            page.keyboard.press("ControlOrMeta+A")
            page.keyboard.insert_text(code)
            try:
                expect(editor).to_contain_text(code.splitlines()[-1].strip())
                page.keyboard.press("ControlOrMeta+Enter")
                expect(prompt).not_to_have_text(before, timeout=20_000)
                return cell
            except AssertionError:
                continue
        raise AssertionError(f"cell {at} was not run")

    def wait_for_end(cell):
        expect(cell.locator(".jp-InputPrompt").first).to_contain_text(re.compile(r"\d"), timeout=90_000)

    deadlock, named = WORDS[language]
    cell = ask(3, "%%ranks\nif rank == 2:\n    raise ValueError('bad rows')\ndist.barrier()")
    cell.get_by_text(named).first.wait_for()
    assert "ValueError" in cell.inner_text()
    wait_for_end(cell)
    cell = ask(4, FAILING["deadlock"])
    cell.get_by_text(deadlock).first.wait_for()
    wait_for_end(cell)

    cell = ask(5, FAILING["breakpoint"])
    field = cell.locator(".jp-Stdin input")
    field.wait_for()
    assert "rank 1 │ ipdb>" in cell.inner_text()
    field.fill("p rank * 111")
    field.press("Enter")
    cell.get_by_text("rank 1 │ 111").first.wait_for()
    # (The field that was answered stays for a moment.)
    page.wait_for_function("() => [...document.querySelectorAll('.jp-Stdin input')].at(-1)?.value === ''")
    field = cell.locator(".jp-Stdin input").last
    field.fill("c")
    field.press("Enter")
    cell.locator(".labkit-ranks").get_by_text("[24.0, 24.0]").wait_for()
    shot(page.locator(".jp-Notebook"), f"ranks-{language}-{theme}")
