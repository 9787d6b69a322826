"""What a diagnosis says and how, and that a check-up leaves everything as it was."""

import gc
import json
import threading

import pytest
import torch
from torch import nn

import labkit
from labkit.course.glossary import problems
from labkit.course.outline import lessons
from labkit.diagnosis import Diagnosis, reports
from labkit.diagnosis.finding import Memory
from labkit.plans.split import split

X = torch.linspace(-1, 1, 80).reshape(16, 5)


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, x):
        return self.linear(x).transpose(0, 1)


@pytest.fixture
def chinese():
    labkit.set_language("zh")
    yield
    labkit.set_language("en")


def every_finding():
    plan = split(10, 8)
    shape = torch.Size([13, 8, 11])
    return [
        reports.batch_moved("output", shape, torch.Size([26, 4, 11]), 1, 2, 8),
        reports.batch_moved("output", shape, None, 1, 2, 8),
        reports.batch_lost("output", torch.Size([5]), torch.Size([20])),
        reports.batch_lost("output", torch.Size([5]), None),
        reports.input_cut("input 1", shape, None, 8, 2, False),
        reports.input_cut("input 1", shape, 1, 8, 2, True),
        reports.input_cut("input 1", shape, 1, 8, 2, False),
        reports.list_cut("input 0", 6),
        reports.rows_dropped({"input 0": 4, "input 1": 2}, {"input 0": X, "input 1": X[:2]}, 4, None),
        reports.rows_dropped(
            {"input 0": 4, "input 1": 2}, {"input 0": X, "input 1": X[:2]}, 4, "ValueError: x"
        ),
        reports.idle(plan),
        reports.scalar_output("output", 4, False),
        reports.scalar_output("output", 4, True),
        reports.biased_loss("output", 0.5, 0.6, plan),
        reports.biased_loss("output", 0.5, 0.6, split(16, 8)),
        reports.not_tensors([("output[1]", 1.5)], 4),
        reports.dataclass_output(plan),
        reports.random_outputs(),
        reports.outputs_differ("output", 0.5),
        reports.untracked_norm(["1"]),
        reports.device_dependent(),
        reports.replica_parameters("model.py", "StopIteration"),
        reports.replica_parameters("model.py", None),
        reports.module_not_registered(["heads[0]", "heads[1]"]),
        reports.nested_parallel(["body"]),
        reports.compiled_model(),
        reports.uncut_input(["input 1"]),
        reports.own_length(["output"]),
        reports.sparse_input("sparse_coo", "NotImplementedError: x"),
        reports.gradients_differ("weight", float("inf")),
        reports.parameter_not_registered("scales[0]"),
        reports.tensor_not_registered("shift"),
        reports.several_devices(["cpu", "cuda:0"]),
        reports.fixed_device("model.py", "RuntimeError: x"),
        reports.fixed_device("model.py", "RuntimeError: x", alone=True),
        reports.attributes_lost(["a", "b"]),
        reports.shared_state(["a"]),
        reports.batch_norm("1", 2, 2, plan, 16),
        reports.batch_norm("1", 2, 200, plan, 16),
        reports.lazy(),
        reports.fails_on_one("model.py", "RuntimeError: x"),
        reports.fails_on_many("model.py", "RuntimeError: x", 4),
        reports.fails_in_training("model.py", "ValueError: Expected more than 1 value per channel", 4),
        reports.fails_in_training("model.py", "ValueError: x", 4),
        reports.loss_fails("model.py", "ValueError: x"),
        reports.fits(2**20, 2**30),
        reports.fits(2**30, 2**20),
        reports.home_memory(2**20, 2**10),
    ]


def test_every_finding_points_to_a_lesson_of_the_course():
    names = {lesson.name for lesson in lessons()}
    assert {finding.lesson for finding in every_finding()} <= names


def test_every_kind_of_finding_is_in_this_test():
    made = {name for name in vars(reports) if callable(getattr(reports, name)) and not name.startswith("_")}
    helpers = {"say", "Finding", "Split", "Sequence", "format_bytes", "gap_text", "listed", "is_dataclass"}
    source = every_finding.__code__.co_names
    assert made - helpers <= set(source), made - helpers - set(source)


def test_findings_use_the_terms_of_the_glossary():
    english = every_finding()
    labkit.set_language("zh")
    try:
        chinese = every_finding()
    finally:
        labkit.set_language("en")
    wrong = []
    for one, other in zip(english, chinese, strict=True):
        assert (one.name, one.severity, one.lesson) == (other.name, other.severity, other.lesson)
        wrong += [(one.name, text) for text in problems(one.reason, other.reason)]
        wrong += [(one.name, text) for text in problems(one.cure, other.cure)]
    assert not wrong


def test_a_diagnosis_shows_itself():
    found = labkit.diagnose(Turned(), X, gpus=2)
    text = repr(found)
    assert text.startswith("Turned, a batch of 16 rows on 2 GPUs: 1 error, 0 warnings")
    assert "ERROR  batch_moved  output" in text
    page = found._repr_html_()
    assert 'data-finding="batch_moved"' in page
    assert "<code>return output.transpose(0, 1)</code>" in page
    assert "<script" not in page
    facts = json.loads(found.to_json())
    assert facts["findings"][0]["name"] == "batch_moved"
    assert facts["memory"][0]["device"] == "cuda:0"


@pytest.mark.usefixtures("chinese")
def test_a_diagnosis_in_chinese():
    found = labkit.diagnose(Turned(), X, gpus=2)
    assert repr(found).startswith("Turned，一个批次 16 行，2 块 GPU：1 个错误，0 个警告")
    assert "怎么办：" in repr(found)
    assert '"一' in found.to_json() or "一块" in found.to_json()  # written as it is, not as escapes


def test_text_of_the_model_is_no_html():
    def forward(self, x):
        raise ValueError("<script>alert(1)</script>")

    model = type("Bad", (nn.Module,), {"forward": forward})()
    assert "<script>" not in labkit.diagnose(model, X)._repr_html_()


def test_nothing_of_the_users_is_changed():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout()).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = X.clone().requires_grad_()
    random = torch.random.get_rng_state()
    with torch.no_grad():
        labkit.diagnose(model, x)
        assert not torch.is_grad_enabled()
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in (*model.parameters(), x))
    assert model.training
    assert not torch.cuda.is_available()


def test_the_machine_in_use_stays():
    with labkit.simulate(gpus=3) as machine:
        model, x = nn.Linear(5, 2).cuda(), X.cuda()
        torch.cuda.set_device(2)
        held = [machine.memory(k) for k in range(3)]
        states = torch.cuda.get_rng_state_all()
        assert labkit.diagnose(model, x, gpus=3, loss=lambda out: (out - x[:, :2]).square().mean()).ok
        assert labkit.diagnose(model, x, gpus=8).ok  # more GPUs than the machine has: another one, meanwhile
        assert torch.cuda.current_device() == 2
        assert torch.cuda.device_count() == 3
        assert [machine.memory(k) for k in range(3)] == held
        assert all(map(torch.equal, states, torch.cuda.get_rng_state_all()))


@pytest.mark.parametrize("wrapper", [nn.DataParallel, labkit.DataParallel])
def test_a_wrapped_model_is_unwrapped(wrapper):
    with labkit.simulate(gpus=2):
        assert labkit.diagnose(wrapper(nn.Linear(5, 2).cuda()), X, gpus=2).model == "Linear"


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((len, X), {}, TypeError, "model must be an nn.Module, got builtin_function_or_method"),
        ((nn.Linear(5, 2),), {}, ValueError, "inputs must hold at least one tensor with rows"),
        ((nn.Linear(5, 2), X), {"gpus": 1}, ValueError, "gpus must be from 2 to 1024, got 1"),
        ((nn.Linear(5, 2), X), {"gpus": "two"}, TypeError, "gpus must be a whole number"),
        ((nn.Linear(5, 2), X), {"loss": 3}, TypeError, "loss must be a function"),
        ((nn.Linear(5, 2), X), {"memory": "much"}, ValueError, "much"),
        (
            (nn.Linear(5, 2), X),
            {"kwargs": [1]},
            TypeError,
            "kwargs must be a dict of keyword inputs, got list",
        ),
        ((nn.Linear(5, 2), X.to("meta")), {}, ValueError, "input 0 is on the meta device"),
        ((nn.Linear(5, 2, device="meta"), X), {}, ValueError, "weight is on the meta device"),
        (
            (nn.Linear(5, 2), torch.nested.nested_tensor([X, X[:2]])),
            {},
            ValueError,
            "input 0 is a nested tensor",
        ),
        ((nn.GRU(5, 2), nn.utils.rnn.pack_sequence([X])), {}, ValueError, "input 0 is a PackedSequence"),
    ],
)
def test_bad_arguments_are_named(arguments, options, error, text):
    with pytest.raises(error, match=text):
        labkit.diagnose(*arguments, **options)


def test_memory_is_remarked_on_only_where_there_is_some():
    def home_memory(width):
        return "home_memory" in labkit.diagnose(nn.Linear(5, width), X, gpus=2)

    assert not home_memory(2)
    assert home_memory(200_000)


def test_what_an_earlier_run_left_does_not_hide_memory():
    class Kept(nn.Module):
        """Leaves a cycle with a tensor on each GPU, which goes when the garbage collector runs: in the next forward."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 100_000)

        def forward(self, x):
            gc.collect()
            cycle = [self.linear(x).detach()]
            cycle.append(cycle)
            return self.linear(x)

    weights, output = 4 * 6 * 100_000, 4 * 8 * 100_000  # 8 of the 16 rows
    assert labkit.diagnose(Kept(), X, gpus=2).memory[1].peak >= weights + 2 * output


def test_a_chinese_page_has_chinese_brackets(chinese):
    model = Turned()
    assert "（课程 06_batch_dim）" in labkit.diagnose(model, X, gpus=2)._repr_html_()
    assert "，常驻权重" in repr(labkit.diagnose(model, X, gpus=2))


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), (letter for letter in "ab")],
    ids=["lock", "generator"],
)
def test_what_cannot_be_copied_is_named(value):
    model = nn.Sequential(nn.Linear(5, 2))
    model[0].guard = value
    with pytest.raises(ValueError, match=r"Sequential cannot be copied .* set 0.guard to None"):
        labkit.diagnose(model, X)


class Runs(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(5, 5), function

    def forward(self, *inputs):
        return self.function(self, *inputs)


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Speechless(), ": Speechless."),
        (ValueError(), ": ValueError."),
        (ValueError("first\nsecond"), ": ValueError: first."),
        (KeyError("key"), ": KeyError: 'key'."),
        (ValueError("x" * 5000), "x…."),
    ],
)
@pytest.mark.parametrize("rows", [16, 17])
def test_errors_are_one_short_line(error, text, rows):
    def forward(self, x):
        if len(x) < rows:
            raise error
        return self.linear(x)

    found = labkit.diagnose(Runs(forward), X, gpus=2)
    assert [f.name for f in found.findings] == ["fails_on_many" if rows == 16 else "fails_on_one"]
    assert text in found.findings[0].reason
    assert len(found.findings[0].reason) < 400


def test_what_a_model_prints_is_not_shown(capsys):
    labkit.diagnose(Runs(lambda self, x: print("here") or self.linear(x)), X, gpus=2)
    assert capsys.readouterr().out == ""


def test_few_forwards_are_enough():
    rows = []

    def counted(self, *inputs):
        rows.append(len(inputs[0]))
        return self.linear(sum(inputs))

    assert labkit.diagnose(Runs(counted), X, gpus=8).ok
    assert sum(rows) <= 8 * len(X)
    rows.clear()
    # Nothing explains this: of the many ways to cut six inputs, some are tried.
    found = labkit.diagnose(Runs(lambda self, *inputs: counted(self, *inputs).softmax(0)), *[X] * 6, gpus=8)
    assert "outputs_differ" in found
    assert sum(rows) <= 60 * len(X)


def test_a_long_list_of_inputs_is_no_reason_to_search_for_ever():
    images = [torch.randn(3, 5, 5) for _ in range(40)]
    model = Runs(lambda self, images: self.linear(torch.stack(images).flatten(0, 2)).flatten().softmax(0))
    found = labkit.diagnose(model, images, gpus=2)
    assert "outputs_differ" in found


def test_the_search_for_another_layout_ends_in_time(monkeypatch):
    from labkit.diagnosis import axes

    clock = iter(range(0, 10**6, 30))
    monkeypatch.setattr(axes, "monotonic", lambda: next(clock))
    rows = []

    def forward(self, *inputs):
        rows.append(len(inputs[0]))
        return self.linear(sum(inputs)).softmax(0)

    assert "outputs_differ" in labkit.diagnose(Runs(forward), *[X] * 6, gpus=8)
    assert len(rows) < 40


def test_a_peak_below_what_the_machine_counts_in_is_said_to_be():
    found = Diagnosis("Small", split(4, 2), (), (Memory("cuda:0", 48, 0), Memory("cuda:1", 0, 2**20)), (), 2)
    assert "cuda:0  under 16 KiB at most" in repr(found)
    assert "cuda:1  1024.00 KiB at most" in repr(found)
    assert "<td>under 16 KiB</td>" in found._repr_html_()
