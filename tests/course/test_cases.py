"""The cases of the lessons: each breaks as it says, and its cure cures it."""

import pytest
import torch

import labkit
from labkit_course import Cases
from labkit_course.cases import cases as all_cases
from labkit_course.glossary import problems

CASES = all_cases()
ALL = [case for cases in CASES.values() for case in cases]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.finding)
def test_a_case_breaks_and_its_cure_cures_it(case):
    found, cured = case.run_check_ups()
    assert found.name == case.finding
    assert cured.ok
    assert case.finding not in cured
    # Shown in lessons, whose code is the same in both languages, and where a line has some 90 letters of room.
    assert (case.broken + case.cured).isascii()
    assert max(map(len, (case.broken + case.cured).splitlines())) <= 100
    assert problems(case.title.en, case.title.zh) == []


def test_no_fault_has_two_cases():
    assert len({case.finding for case in ALL}) == len(ALL)


@pytest.mark.parametrize("language", [pytest.param("en", marks=pytest.mark.more), "zh"])
def test_cases_show_the_lines_fold_what_becomes_of_them_and_leave_the_session_as_it_was(language):
    labkit.set_language(language)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with labkit.simulate(2):
        cases = Cases("05_devices")
        assert torch.rand(1) == expected
        assert torch.cuda.device_count() == 2
        assert str(torch.ones(1, device="cuda:1").device) == "cuda:1"
    html, text = cases._repr_html_(), repr(cases)
    assert html.count("<details>") == html.count("</details>") == len(CASES["05_devices"])
    assert (
        "x.device.index == 0" in html[: html.index("device_dependent")]
    )  # the lines are seen before what is folded
    assert "- model = nn.Sequential(nn.Linear(5, 4).cuda(), nn.Linear(4, 2))\n+ model" in text
    for case in CASES["05_devices"]:
        assert f"<code>{case.finding}</code>" in html
        assert str(case.title) in text


def test_a_lesson_without_cases_is_refused():
    with pytest.raises(
        ValueError, match="lesson must be one of '05_devices', '06_batch_dim', '07_training', '08_memory'"
    ):
        Cases("04_primitives")
