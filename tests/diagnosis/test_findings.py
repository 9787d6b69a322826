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
from labkit.diagnosis.findings import KINDS, inputs, modules, outputs
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
    assert kind.lesson in {lesson.name for lesson in lessons()}
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


# What the lesson that a finding names says of it, in its English notebook.
TAUGHT = {
    "idle_gpus": "the GPUs after it are **idle**",
    "replica_parameters": "A replica is not a normal module: it has no parameters",
    "fixed_device": "find the tensor or the layer that was not moved",
    "not_registered": "The cure is `nn.ModuleList([...])`",
    "batch_moved": ".transpose(0, 1)",
    "hidden_state_cut": "takes care of the hidden state",
    "input_cut": "as a **buffer** it",
    "list_cut": "takes a **list** of six images",
    "batch_norm": "## BatchNorm sees a piece",
    "scalar_output": "`.mean()` was taken **outside**",
    "biased_loss": "a loss averaged in the wrong place",
    "attributes_lost": "counts its calls in an attribute",
    "kept_from_one_gpu": "the buffers of replica 0 are the model's own",
    "home_memory": "the memory of GPU 0",
}
# What no lesson teaches yet, and a word without which it hardly could.
UNTAUGHT = {
    "not_simulated": "torch.compile",
    "compiled_model": "compile",
    "dataclass_output": "dataclass",
    "device_dependent": "device.index",
    "fails_on_many": "piece of one row",
    "lazy_modules": "Lazy",
    "nested_parallel": "wrapped twice",
    "not_tensors": "not iterable",
    "random_outputs": "seed",
    "replica_weights": "in place",
    "uncut_input": "numpy",
    "cache_on_one_gpu": "cache",
    "fails_on_one": "fails on one GPU",
    "several_devices": "several devices",
    "batch_lost": ".mean(0)",
    "input_axis": "dim=1)(",
    "outputs_differ": "normalis",
    "own_length": "pad_packed_sequence",
    "rows_compared": "each pair of rows",
    "rows_dropped": "dropped",
    "rows_refer": "edge",
    "sparse_input": "sparse",
    "fails_in_training": "training mode",
    "gradients_differ": ".detach()",
    "loss_fails": "loss fails",
    "memory_fits": "memory=",
    "memory_too_small": "out of memory",
    "shared_state": ".append(",
    "untracked_norm": "track_running_stats",
}


@cache
def lesson_text(name):
    path = Path(__file__).parents[2] / "notebooks" / "en" / f"{name}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def test_a_finding_is_taught_where_it_says_or_named_as_one_that_is_not():
    lessons_of = {kind.name: kind.lesson for kind in KINDS}
    assert TAUGHT.keys() | UNTAUGHT.keys() == lessons_of.keys()
    assert not TAUGHT.keys() & UNTAUGHT.keys()
    lost = {name for name, words in TAUGHT.items() if words not in lesson_text(lessons_of[name])}
    assert not lost, "the lesson no longer says so: say where it does"
    found = {name for name, word in UNTAUGHT.items() if word in lesson_text(lessons_of[name])}
    assert not found, "if the lesson teaches it now, it belongs to TAUGHT, with what it says"


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
        error("half", "03_split")(text)
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
