"""docs/ranks.md says the same in both languages; tests/test_renew.py runs its programs."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    language: (DOCS / name).read_text("utf-8")
    for language, name in (("en", "ranks.md"), ("zh", "ranks.zh.md"))
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
