"""Ten broken models: each is found by the check-up, its repair is right, and wrong repairs get the hint for them."""

import linecache
import re
from pathlib import Path
from random import Random

import pytest
import torch
from torch import nn

import labkit
from labkit.plans.split import split
from labkit.view.pictures.lanes import inputs_picture
from labkit_content.broken.judging import cases, input_cut, judge, models, symptom
from labkit_content.repairs import problems, score
from labkit_course import Progress, batch, hint, progress, repair
from tools.author import sync

pytestmark = pytest.mark.usefixtures("own_progress")
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PROBLEMS = problems("09")
NAMES = list(PROBLEMS)
CHECKUP = {"surprise": "attributes_lost"}  # a warning: what is lost may be meant to be


def cells():
    return {cell.id: cell.source for cell in sync.read(NOTEBOOKS, "en", "09_broken").cells}


def as_in_a_notebook(source):
    """The class of a cell, whose source Python finds as it finds that of a cell."""
    name = f"<cell {len(linecache.cache)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    made = {"nn": nn, "torch": torch, "F": torch.nn.functional, "__name__": "__main__"}
    exec(compile(source, name, "exec"), made)
    return next(value for value in made.values() if isinstance(value, type))


@pytest.mark.parametrize("name", NAMES)
def test_the_checkup_finds_it(name):
    problem = PROBLEMS[name]
    torch.manual_seed(0)
    with labkit.simulate(gpus=2):  # the experts want a GPU
        found = labkit.diagnose(problem.broken(), *batch(name, rows=8), gpus=2).findings
    severities = {one.severity for one in found}
    assert "error" in severities or CHECKUP.get(name) in {one.name for one in found}


def test_the_same_draw_judges_alike_and_another_draws_other_cases():
    problem = PROBLEMS["clicks"]

    def drawn(seed):
        return [(case.gpus, case.rows, case.calls[0][0].tolist()) for _, case in cases(problem, Random(seed))]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_the_cases_are_full_short_and_fewer_rows_than_gpus():
    for seed in range(20):
        found = [
            (reached, case.gpus, case.rows) for reached, case in cases(PROBLEMS["experts"], Random(seed))
        ]
        assert found[0][1] == 1
        assert all(len(set(split(rows, gpus).sizes)) == 1 for reached, gpus, rows in found if reached == 0)
        assert sum(len(set(split(rows, gpus).sizes)) == 2 for _, gpus, rows in found) >= 2
        assert any(1 < rows < gpus for _, gpus, rows in found)
        assert any(rows == 1 < gpus for _, gpus, rows in found)
        assert all(1 <= gpus <= 8 for _, gpus, _ in found)


REPAIRED = PROBLEMS["experts"].repaired


class OneGpu(models.Experts):
    """Right values, and all the work on GPU 0."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(self.experts)
        self.hidden = [self]

    def before(self, x):
        return x.unsqueeze(0)

    def forward(self, x):
        return super().forward(x[0])


class Deaf(REPAIRED):
    def forward(self, x):
        return super().forward(torch.ones(len(x), 6, device=x.device))


class Wide(models.Experts):
    def __init__(self):
        super().__init__(4)
        self.experts = nn.ModuleList(self.experts)


class Unmade(models.Experts):
    def __init__(self, size):
        super().__init__()


class Raises(REPAIRED):
    def forward(self, x):
        if x.device.index == 1:
            raise KeyError("no such expert")
        return super().forward(x)


class Leaves(Raises):
    def forward(self, x):
        raise SystemExit(3)


class Nothing(Raises):
    def forward(self, x):
        return None


class Doubled(Raises):
    """Trains half of the model."""

    def forward(self, x):
        output = models.Experts.forward(self, x)
        return output.detach() + output / 2 - output.detach() / 2


SHAMS = [
    (OneGpu, "one_gpu", "layers ran on cuda:0 only"), (Deaf, "deaf", "the result is the same for every batch"),
    (Wide, "names", "has gained `experts.3.bias`"), (Unmade, "failed", "`__init__` of your class raised"),
    (Raises, "failed", "replica 1 on cuda:1 of your class raised `KeyError: 'no such expert'` (test_broken.py, line"),
    (Leaves, "failed", "`forward` of your class raised `SystemExit`"), (Nothing, "nothing", "the result is `NoneType`"),
    (nn.Linear, "failed", "`__init__` of your class raised `TypeError"),
    (Doubled, "gradient", "is not that of one GPU"),
    (nn.Linear(1, 1), "no_class", "give the class itself"), (3, "no_class", "an object, int"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "id", "words"), SHAMS)
def test_what_is_no_repair_is_refused_in_words_and_errors_are_the_learners(model, id, words):
    found = judge(PROBLEMS["experts"], model, Random(0))
    assert found.points == (8 if id == "gradient" else 0)
    assert words in found.hint.en
    assert found.hint.id == id
    assert "Traceback" not in found.hint.en
    assert "labkit" not in found.hint.en.replace("labkit's", "")


def test_an_interrupt_is_the_learners_own():
    class Interrupted(Raises):
        def forward(self, x):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(PROBLEMS["experts"], Interrupted, Random(0))
    assert not torch.cuda.is_available() or torch.cuda.device_count()


def test_judging_leaves_the_machine_and_the_random_state_as_they_were(capsys):
    class Chatty(REPAIRED):
        def forward(self, x):
            print("here")
            return super().forward(x)

    with labkit.simulate(gpus=2):
        torch.manual_seed(1)
        expected = torch.rand(1)
        torch.manual_seed(1)
        held = torch.ones(3, device="cuda:1")
        with torch.no_grad():
            assert judge(PROBLEMS["experts"], Chatty, Random(0)).points == 10
        assert torch.equal(torch.rand(1), expected)
        assert torch.cuda.device_count() == 2
        assert held.device == torch.device("cuda:1")
    assert capsys.readouterr().out == ""


def test_an_unchanged_class_is_no_attempt_and_shows_its_symptom(language):
    for model in (None, ..., models.Words, as_in_a_notebook(cells()["words-class"] + "  # mine\n")):
        verdict = repair("words", model)
        assert verdict.right is None
        first, one, two, four = repr(verdict).splitlines()
        assert (
            first
            == {
                "en": "… Not repaired yet: change the class and run both cells again.",
                "zh": "… 还没有修：改好上面的类，再运行这两个单元格。",
            }[language]
        )
        assert one.startswith({"en": "1 GPU ", "zh": "1 块 GPU "}[language])
        assert {"en": "off by", "zh": "相差"}[language] in two
        assert {"en": "4 GPUs", "zh": "4 块 GPU"}[language] in four
    assert score.best_points("words") is None


@pytest.mark.parametrize("name", NAMES)
def test_every_symptom_shows_that_something_is_wrong(name):
    _, two, _ = symptom(PROBLEMS[name]).splitlines()
    assert "Error" in two or "off by" in two


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_shows_what_is_wrong_on_two_gpus(name, language):
    problem = PROBLEMS[name]
    first, second = input_cut(problem).returned
    values = name in ("pairs", "words")  # losses, whose mean is wrong
    assert not [text.text for text in inputs_picture(input_cut(problem)).texts if "…" in text.text]
    off = [re.search(r"(?:off by|最多相差)(?: up to)? ([\d.]+)", words) for words in (first, second)]
    assert "" in (first, second) or first != second or off[0], (first, second)
    assert bool(off[0]) == bool(off[1]) == (name in ("roads", "surprise"))
    if off[0]:  # the larger of the two is what the line below the picture says
        _, two, _ = symptom(problem).splitlines()
        assert max(float(one[1]) for one in off) == float(
            re.search(r"(?:off by up to|最多相差) ([\d.]+)", two)[1]
        )
    elif values:
        _, two, _ = symptom(problem).splitlines()
        assert f"{(float(first) + float(second)) / 2:.3f}" in two


def test_nothing_is_said_of_the_ten_before_one_is_tried():
    assert "Ten broken" not in repr(Progress())


def test_where_progress_is_not_kept_the_score_is_of_this_session(monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", "off")
    monkeypatch.setattr(score, "_here", {progress.REACHED: set(), progress.HINTED: set()})
    hint("pairs", 1)
    assert "9 points can still be won. The next hint costs 2" in repr(hint("pairs", 1))
    assert "Total: 9 of 100" in repr(repair("pairs", PROBLEMS["pairs"].repaired))


def test_a_button_takes_the_next_hint():
    verdict = repair("roads", None)
    bundle = verdict._repr_mimebundle_()
    assert {"text/plain", "text/html"} < set(bundle)
    import ipywidgets as widgets

    boxes = [w for w in widgets.Widget.widgets.values() if "labkit-repair" in getattr(w, "_dom_classes", ())]
    _, button, told = boxes[-1].children
    assert button.description == "Hint 1 of 4 (1 point)"
    button.click()
    assert "some crossings hear nothing" in told.value
    assert button.description == "Hint 2 of 4 (2 points)"
    for _ in range(3):
        button.click()
    assert button.layout.display == "none"
    assert "class Repaired(Roads)" in told.value
    assert score.cost("roads") == 10
    repair("roads", None)._repr_mimebundle_()  # on another day the hints are still there, folded
    boxes = [w for w in widgets.Widget.widgets.values() if "labkit-repair" in getattr(w, "_dom_classes", ())]
    _, button, told = boxes[-1].children
    assert button.layout.display == "none"
    assert "<details>" in told.value
    assert "class Repaired(Roads)" in told.value
    assert set(repair("roads", PROBLEMS["roads"].repaired)._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_a_batch_is_as_the_model_gets_it():
    torch.manual_seed(0)
    tokens, lengths = batch("tagger", rows=5)
    assert (len(tokens), len(lengths), tokens.size(1)) == (5, 5, int(lengths.max()))
    assert [type(one) for one in batch("photos", rows=2)] == [list]
    for name in NAMES:
        assert not torch.cuda.is_available()
        if name != "experts":
            PROBLEMS[name].broken()(*batch(name, rows=3))


@pytest.mark.parametrize(("call", "words"), [
    (lambda: repair("tager", None), "name must be one of 'tagger', 'typist'"),
    (lambda: hint("tagger", 5), "number must be from 1 to 4, got 5"),
    (lambda: batch("tagger", rows=0), "rows must be from 1 to 10000, got 0"),
])  # fmt: skip
def test_a_slip_of_the_pen_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
