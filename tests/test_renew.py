"""What pages quote is what labkit prints; ``make renew ARGS=pages`` writes it anew."""

import re

import pytest

from tools import renew


@pytest.mark.parametrize(
    "name",
    [name if ".zh" not in name else pytest.param(name, marks=pytest.mark.more) for name in renew.PAGES],
)
def test_pages_quote_what_their_programs_print(name, warm_kernels):
    text = (renew.ROOT / name).read_text("utf-8")
    assert re.search("^```text$", text, re.MULTILINE)
    assert renew.renew_page(text, renew.page_language(name)) == text


def test_only_the_blocks_below_programs_are_replaced():
    page = "A\n```python\nprint(1 + 1)\n```\nB\n```text\n3\n```\nC\n```python\nprint(7)\n```\n```text\n```\n"
    page += "```text\n9\n```\n"
    expected = page.replace("3\n", "2\n").replace("```text\n```", "```text\n7\n```")
    assert renew.renew_page(page, "en") == expected


def test_a_step_that_there_is_not(capsys):
    assert renew.main(["page"]) == 2
    assert "pages" in capsys.readouterr().err
