"""What every kind of finding says: declared whole, in both languages."""

import json
import re
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

import labkit_diagnose
from labkit.base.language import using
from labkit.base.texts import Text, parse
from labkit_course.glossary import problems
from labkit_course.outline import lessons
from labkit_diagnose.findings import KINDS, PHRASES, UNTAUGHT, list_some, read_findings
from labkit_diagnose.probes import PROBES
from labkit_ranks.calls import faults
from labkit_ranks.diagnosis import kinds


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


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.key)
def test_a_kind_is_declared_whole(kind):
    assert kind.topic.lesson in {lesson.name for lesson in lessons()} | {""}
    english, chinese = both(lambda: kind("output", **dict.fromkeys(kind.facts, 3)))
    assert english.where == chinese.where == "output"
    for text, one, other in (
        (kind.reason, english.reason, chinese.reason),
        (kind.fix, english.fix, chinese.fix),
    ):
        assert facts(text.en) == facts(text.zh)  # both languages tell the same
        assert one.isascii()
        assert is_chinese(other)
        assert not set("{}\n") & set(one + other)
        assert "  " not in one + other
        assert text.en.endswith((".", "`", "}"))  # whole sentences
        assert text.zh.endswith(("。", "`", "}"))
        assert not problems(one, other)


@pytest.mark.parametrize("key", PHRASES)
def test_a_phrase_has_both_languages(key):
    phrase = PHRASES[key]
    assert facts(phrase.en) == facts(phrase.zh)
    english, chinese = both(lambda: phrase(**dict.fromkeys(phrase.facts, 3)))
    assert english.isascii()
    assert is_chinese(chinese) or not re.search("[a-z]", english)  # or it is but marks around a fact
    assert not problems(english, chinese)


def test_the_code_names_no_kind_and_no_phrase_that_is_not_declared():
    used = set()
    for path in Path(labkit_diagnose.__file__).parent.rglob("*.py"):
        used |= set(re.findall(r'(KINDS|PHRASES)\["([^"]+)"\]', path.read_text("utf-8")))
    assert len(used) > 60
    assert not {key for of, key in used if key not in (KINDS if of == "KINDS" else PHRASES)}


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
def test_findings_are_taught_in_the_sections_that_they_name(language):
    untaught = {kind.name for kind in KINDS.values() if kind.topic is UNTAUGHT}
    assert untaught == {"fails_on_one"}, "only what is no matter of data parallelism has no lesson"
    for kind in KINDS.values():
        if kind.topic is not UNTAUGHT:
            with using(language):
                finding = kind(**dict.fromkeys(kind.facts, 3))
            assert finding.section in sections(language, finding.lesson), "the heading is another one now"
            wanted = SAID.get(kind.name, (kind.name, kind.name))[language == "zh"]
            assert wanted in sections(language, finding.lesson)[finding.section], kind.key


# Where the section says it in other words.
SAID_OF_RANKS = {
    "deadlock": ("**deadlock**", "**死锁**"),
    "norm_gradients_not_reduced": ("LayerNorm now sees only this rank's rows",
                                   "LayerNorm 现在只看得到这个 rank 的行"),
    "cut_with_a_remainder": ("heads", "头"),
}  # fmt: skip


def faults_among_ranks():
    code = "".join(path.read_text("utf-8") for path in Path(faults.__file__).parent.glob("*.py"))
    named = set(re.findall(r'Report\("(\w+)"|"(\w+_differ)"|fault = .*, "(\w+)"\n', code))
    return {next(filter(None, names)) for names in named} | {*faults.FAULT_OF.values(), "deadlock"}


NAMES = {kind.name for kind in kinds.KINDS.values()} | faults_among_ranks()


def test_topics_are_those_of_findings_and_faults():
    assert len(faults_among_ranks()) == 8
    assert kinds.TOPICS.keys() <= NAMES | {"others"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_findings_of_ranks_are_taught_in_the_sections_that_they_name(language):
    for name in NAMES:
        topic = kinds.topic_of(name)
        found, heading = sections(language, topic.lesson), topic.heading.in_language(language)
        assert heading in found, "the heading is another one now"
        assert SAID_OF_RANKS.get(name, (name, name))[language == "zh"] in found[heading], name


def test_facts_must_be_those_of_the_text():
    kind = KINDS["list_cut"]
    assert "a list of 6 items" in kind("input 0", rows=6).reason
    for wrong in ({}, {"rows": 6, "columns": 2}):
        with pytest.raises(TypeError, match="list_cut: .* wants the facts .'rows'., got"):
            kind("input 0", **wrong)


@pytest.mark.parametrize(("text", "said"), [
    ("%% half fatal\nen: a\nzh: b\nfix en: c\nfix zh: d", "'half fatal' has an unknown severity"),
    (2 * "%% half note\nen: a\nzh: b\nfix en: c\nfix zh: d\n", "declared twice"),
    ("%% half note\nen: a\nzh: b\nfix zh: d", "'half note' must say everything in English and in Chinese"),
    ("%% half note", "must say everything"),
    ("en: a\nzh: b", "line 1: 'en: a' belongs to no text"),
])  # fmt: skip
def test_a_text_that_lacks_something_is_refused(text, said, tmp_path):
    file = tmp_path / "half.txt"
    file.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=said):
        read_findings(file)


def test_texts_go_on_in_the_lines_below(tmp_path):
    (entry,) = parse(
        "# For nobody.\n%% a note b\nen: one\n    two {x}\n\nzh: 一\n    二{x}\nfix en: c\nfix zh: 三\n"
    )
    assert entry.words == ("a", "note", "b")
    assert entry.texts == {"": Text("one two {x}", "一二{x}"), "fix": Text("c", "三")}
    with pytest.raises(TypeError, match="wants the facts"):
        entry.texts[""]()


def test_what_explains_a_probe_stands_before_it():
    names = [probe.name for probe in PROBES]
    assert len(set(names)) == len(names)
    for at, probe in enumerate(PROBES):
        assert probe.look.__doc__.startswith("Run ")
        assert set(probe.explained_by) <= {*names[:at], *KINDS}


def test_many_names_are_shortened():
    assert list_some(list("abcde")) == "a, b, c, d, e"
    assert list_some(list("abcdefg")) == "a, b, c, d, e, … (7)"
