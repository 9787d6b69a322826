"""What every kind of finding says: declared whole, in both languages, and made by the probes that declare it."""

import json
from functools import cache
from graphlib import CycleError
from pathlib import Path
from string import Formatter

import pytest

from labkit.base.language import using
from labkit.course.glossary import problems
from labkit.course.outline import lessons
from labkit.diagnosis.findings import KINDS, inputs, modules, outputs, topics
from labkit.diagnosis.findings.kind import error, gap_text, listed
from labkit.diagnosis.probes import PROBES, Probe, in_order
from labkit.diagnosis.result import SEVERITIES


def facts(text):
    """The names of the facts in a text."""
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def both(make):
    """What ``make`` gives in English and in Chinese."""
    english = make()
    with using("zh"):
        return english, make()


def is_chinese(text):
    return any("\u4e00" <= letter <= "\u9fff" for letter in text)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_declared_whole(kind):
    assert kind.severity in SEVERITIES
    assert kind.topic.lesson in {lesson.name for lesson in lessons()} | {""}
    english, chinese = both(lambda: kind("output", **dict.fromkeys(kind.facts, 3)))
    assert english.where == chinese.where == "output"
    for templates, one, other in (
        (kind.reason, english.reason, chinese.reason),
        (kind.fix, english.fix, chinese.fix),
    ):
        assert facts(templates[0]) == facts(templates[1])  # both languages tell the same
        assert one.isascii()
        assert is_chinese(other)
        assert not set("{}\n") & set(one + other)
        assert "  " not in one + other
        assert templates[0].endswith((".", "`", "}"))  # whole sentences
        assert templates[1].endswith(("。", "`", "}"))
        assert not problems(one, other)


# Where the section says it in other words than the check-up's own name for it.
SAID = {
    "idle_gpus": ("the GPUs after it are **idle**", "再往后的 GPU 就**空闲**"),
    "replica_parameters": ("`self.parameters()`", "`self.parameters()`"),
    "not_simulated": ("**not** simulated", "**不**模拟"),
}


@cache
def sections(language, lesson):
    """What stands below each heading of a lesson: texts, code and what was stored as shown, in one."""
    path = Path(__file__).parents[2] / "notebooks" / language / f"{lesson}.ipynb"
    found, heading = {}, ""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        lines = "".join(cell["source"]).splitlines()
        for output in cell.get("outputs", []):
            lines += ["".join(text) for text in [*output.get("data", {}).values(), output.get("text", "")]]
        for line in lines:
            if cell["cell_type"] == "markdown" and line.startswith("## "):
                heading = line[3:]
            found[heading] = f"{found.get(heading, '')}\n{line}"
    return found


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_finding_is_taught_in_the_section_that_it_names(kind, language):
    if kind.topic is topics.UNTAUGHT:
        assert kind.name == "fails_on_one", "only what is no matter of data parallelism has no lesson"
        return
    with using(language):
        finding = kind(**dict.fromkeys(kind.facts, 3))
    assert finding.section in sections(language, finding.lesson), "the heading is another one now"
    wanted = SAID.get(kind.name, (kind.name, kind.name))[language == "zh"]
    assert wanted in sections(language, finding.lesson)[finding.section]


@pytest.mark.parametrize(
    "phrase",
    [
        lambda: outputs.glued([26, 4], 2),
        lambda: outputs.glued(None, 2),
        lambda: inputs.paired(2, None),
        lambda: inputs.paired(2, "ValueError: x"),
        lambda: modules.asked("StopIteration"),
        lambda: modules.asked(None),
        lambda: gap_text(0.5),
        lambda: gap_text(float("inf")),
    ],
)
def test_a_fact_in_words_has_both_languages(phrase):
    english, chinese = both(phrase)
    assert english.isascii()
    assert is_chinese(chinese)
    assert not problems(english, chinese)


def test_facts_must_be_those_of_the_text():
    kind = inputs.LIST_CUT
    assert "a list of 6 items" in kind("input 0", rows=6).reason
    for wrong in ({}, {"rows": 6, "columns": 2}):
        with pytest.raises(TypeError, match="list_cut wants the facts .'rows'., got"):
            kind("input 0", **wrong)


@pytest.mark.parametrize(
    "text", ["", "en: a\nzh: b\nfix zh: d\nfix en: c", "x\nen: a\nzh: b\nfix en: c\nfix zh: d"]
)
def test_a_text_that_lacks_something_is_refused(text):
    known = list(KINDS)
    with pytest.raises(ValueError, match="half must say en, zh, fix en, fix zh"):
        error("half", topics.RULE)(text)
    assert known == KINDS


def test_every_kind_has_its_probe_and_every_probe_its_place():
    assert {kind for probe in PROBES for kind in probe.finds} == set(KINDS)
    assert len({probe.name for probe in PROBES}) == len(PROBES)
    order = in_order()
    assert set(order) == set(PROBES)
    for at, probe in enumerate(order):
        assert probe.look.__doc__.startswith("Runs ")
        assert set(probe.after) <= set(order[:at])
        explaining = set(probe.explained_by)
        assert not [later for later in order[at + 1 :] if {later, *later.finds} & explaining]


def test_probes_that_wait_for_one_another_are_refused():
    one = Probe(lambda runs: [], (inputs.LIST_CUT,), explained_by=(inputs.IDLE_GPUS,))
    other = Probe(lambda runs: [], (inputs.IDLE_GPUS,), explained_by=(inputs.LIST_CUT,))
    with pytest.raises(CycleError):
        in_order((one, other))


def test_many_names_are_shortened():
    assert listed(list("abcde")) == "a, b, c, d, e"
    assert listed(list("abcdefg")) == "a, b, c, d, e, … (7)"
