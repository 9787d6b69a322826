"""docs/ranks.md: what its cells show is what happens, and its two languages say the same."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    language: (DOCS / name).read_text("utf-8")
    for language, name in (("en", "ranks.md"), ("zh", "ranks.zh.md"))
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def uncounted(text):
    """Without the numbers of cells and calls."""
    return re.sub(r"(?<=In\[)\d+|(?<=call )\d+|(?<=第 )\d+", "", text)


@pytest.mark.parametrize("language", PAGES)
def test_the_cells_show_what_the_page_says(kernel, language):
    kernel.run(f"import labkit\nlabkit.set_language({language!r})")
    kernel.run("%ranks --close")
    blocks = BLOCK.findall(PAGES[language])
    checked = 0
    for at, (kind, code) in enumerate(blocks):
        if kind != "python":
            continue
        kernel.run("import torch.distributed as dist")
        shown = kernel.run(code.rstrip())
        if blocks[at + 1 : at + 2] and blocks[at + 1][0] == "text":
            there = uncounted(shown).splitlines()
            missing = [line for line in uncounted(blocks[at + 1][1]).splitlines() if line not in there]
            assert not missing, shown
            checked += 1
        else:
            assert kernel.error is None, shown
    assert checked == 3


def test_the_page_is_one_in_two_languages():
    for pattern in (r"^(#+) ", r"^\| `[^|]*` \|", r"^```.*"):
        assert [re.findall(pattern, page, re.MULTILINE) for page in PAGES.values()].count(
            re.findall(pattern, PAGES["en"], re.MULTILINE)
        ) == 2, pattern
    codes = [[code for kind, code in BLOCK.findall(page) if kind != "text"] for page in PAGES.values()]
    assert codes[0] == codes[1]
    for page in PAGES.values():
        for target in re.findall(r"\]\(([^)#\s]+)\)", page):
            assert (DOCS / target).exists()
