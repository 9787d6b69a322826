"""What the tests of diagnose share."""

import re

import pytest

from labkit.base.language import using


@pytest.fixture
def in_both_languages():
    """Make a check-up in English, and another in Chinese, which must come to the same: verdicts read no words."""

    def facts(found):
        # A line of code is "model.py, line 3" in the one and "model.py 第 3 行" in the other.
        findings = [(one.name, one.severity, re.findall(r"\d+", one.where)) for one in found.findings]
        return found.ok, findings, len(found.compared), len(found.uncompared), found.memory

    def both(check):
        found = check()
        with using("zh"):
            assert facts(check()) == facts(found), found
        return found

    return both


@pytest.fixture(params=["en", pytest.param("both", marks=pytest.mark.more)])
def told(request, in_both_languages):
    """Make a check-up in English; where repeats are run, too, also in Chinese."""
    return in_both_languages if request.param == "both" else lambda check: check()
