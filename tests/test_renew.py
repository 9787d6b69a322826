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
