"""What a diagnosis says and how, and that a check-up leaves everything as it was."""

import gc
import json

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import labkit
from labkit.plans.split import split
from labkit_diagnose import Diagnosis, Finding, GpuMemory
from labkit_diagnose.result import SEVERITIES, label

X = torch.linspace(-1, 1, 80).reshape(16, 5)


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, x):
        return self.linear(x).transpose(0, 1)


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


@pytest.mark.parametrize(("rows", "shape"), [(8, "[4, 4, 6]"), (7, None)])
def test_pieces_that_another_fault_keeps_from_gather_are_not_said_to_be_unfit(rows, shape):
    """A hidden state cut wrongly ends the run first. Repaired, equal pieces would be joined without an error."""

    class States(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(4, 6, num_layers=2, batch_first=True)

        def forward(self, x, hidden):
            return self.rnn(x, hidden)

    found = labkit.diagnose(States(), torch.randn(rows, 3, 4), torch.zeros(2, rows, 6), gpus=2)
    (moved,) = (one for one in found.findings if one.name == "batch_moved")
    assert ("not even fit" in moved.reason) is (shape is None)
    assert shape is None or shape in moved.reason


def test_a_diagnosis_in_chinese():
    labkit.set_language("zh")
    found = labkit.diagnose(Turned(), X, gpus=2)
    assert repr(found).startswith("Turned，一个批次 16 行，2 块 GPU：1 个错误，0 个警告")
    for words in ("怎么办：", "，常驻权重"):
        assert words in repr(found)
    assert "见第 06 课（06_batch_dim.ipynb）：" in found._repr_html_()
    assert '"一' in found.to_json() or "一块" in found.to_json()  # written as it is, not as escapes


def test_text_of_the_model_is_no_html():
    def forward(self, x):
        raise ValueError("<script>alert(1)</script>")

    model = type("Bad", (nn.Module,), {"forward": forward})()
    assert "<script>" not in labkit.diagnose(model, X)._repr_html_()


def test_names_in_the_outputs_are_no_html():
    page = labkit.diagnose(Runs(lambda self, x: {"<b>": self.linear(x).t()}), X, gpus=2)._repr_html_()
    assert "output[&#x27;&lt;b&gt;&#x27;]" in page


@pytest.mark.parametrize("wrapper", [nn.DataParallel, labkit.DataParallel])
def test_a_wrapped_model_is_unwrapped(wrapper, gpus):
    assert labkit.diagnose(wrapper(nn.Linear(5, 2).cuda()), X, gpus=2).model == "Linear"


@pytest.mark.parametrize(("arguments", "options", "error", "text"), [
    ((len, X), {}, TypeError, r"model must be an nn.Module, got <built-in function len> \(builtin"),
    ((nn.Linear(5, 2),), {}, ValueError, "inputs must hold at least one tensor with rows"),
    ((nn.Linear(5, 2), X), {"gpus": 1}, ValueError, "gpus must be from 2 to 1024, got 1"),
    ((nn.Linear(5, 2), X), {"gpus": "two"}, TypeError, "gpus must be a whole number"),
    ((nn.Linear(5, 2), X), {"loss": 3}, TypeError, "loss must be a function"),
    ((nn.Linear(5, 2), X), {"memory": "much"}, ValueError, "much"),
    ((nn.Linear(5, 2), X), {"kwargs": [1]}, TypeError, r"kwargs must be a dict, got \[1\] \(list\)"),
    ((nn.Linear(5, 2), X.to("meta")), {}, ValueError, "input 0 is on the meta device"),
    ((nn.Linear(5, 2, device="meta"), X), {}, ValueError, "weight is on the meta device"),
    ((nn.BatchNorm1d(5, affine=False, device="meta"), X), {}, ValueError,
     "running_mean is on the meta device"),
    ((nn.Linear(5, 2), torch.nested.nested_tensor([X, X[:2]])), {}, ValueError, "input 0 is a nested tensor"),
    ((nn.GRU(5, 2), nn.utils.rnn.pack_sequence([X])), {}, ValueError, "input 0 is a PackedSequence"),
])  # fmt: skip
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


@pytest.mark.parametrize("value", [memoryview(b"ab"), (letter for letter in "ab")], ids=["view", "generator"])
def test_what_cannot_be_copied_is_named(value):
    model = nn.Sequential(nn.Linear(5, 2))
    model[0].guard = value
    with pytest.raises(ValueError, match=r"cannot copy this Sequential .* set 0.guard to None"):
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


@pytest.mark.parametrize(("error", "text"), [
    (Speechless(), ": Speechless."), (ValueError(), ": ValueError."),
    (ValueError("first\nsecond"), ": ValueError: first."), (KeyError("key"), ": KeyError: 'key'."),
    (ValueError("x" * 5000), "x…."),
])  # fmt: skip
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


@pytest.fixture
def rows():
    """How many rows each forward of a :class:`Runs` got. What a forward itself writes down, a check-up puts back."""
    seen = []

    def note(module, inputs):
        if isinstance(module, Runs):
            seen.append(len(inputs[0]))

    hook = register_module_forward_pre_hook(note)
    yield seen
    hook.remove()


def test_few_forwards_are_enough(rows):
    assert labkit.diagnose(Runs(lambda self, *inputs: self.linear(sum(inputs))), X, gpus=8).ok
    assert 4 * len(X) <= sum(rows) <= 8 * len(X)
    rows.clear()
    # Nothing explains this: of the many ways to cut six inputs, some are tried.
    model = Runs(lambda self, *inputs: self.linear(sum(inputs)).softmax(0))
    assert "outputs_differ" in labkit.diagnose(model, *[X] * 6, gpus=8)
    assert 8 * len(X) <= sum(rows) <= 60 * len(X)


def test_a_long_list_of_inputs_is_no_reason_to_search_for_ever():
    images = [torch.randn(3, 5, 5) for _ in range(40)]
    model = Runs(lambda self, images: self.linear(torch.stack(images).flatten(0, 2)).flatten().softmax(0))
    found = labkit.diagnose(model, images, gpus=2)
    assert "outputs_differ" in found


def test_the_search_for_another_layout_ends_in_time(monkeypatch, rows):
    from labkit_diagnose import batch_layout

    clock = iter(range(0, 10**6, 30))
    monkeypatch.setattr(batch_layout, "monotonic", lambda: next(clock))
    model = Runs(lambda self, *inputs: self.linear(sum(inputs)).softmax(0))
    assert "outputs_differ" in labkit.diagnose(model, *[X] * 6, gpus=8)
    assert 0 < len(rows) < 40


def test_a_peak_below_what_the_machine_counts_in_is_said_to_be():
    found = Diagnosis("Small", split(4, 2), (), (GpuMemory("cuda:0", 48, 0), GpuMemory("cuda:1", 0, 2**20)))
    assert "cuda:0  peak under 16 KiB" in repr(found)
    assert "cuda:1  peak 1024.00 KiB" in repr(found)
    assert "<td>48 bytes</td><td>under 16 KiB</td>" in found._repr_html_()


def test_each_severity_is_named():
    found = [Finding(severity, severity, "", "", "", "") for severity in SEVERITIES]
    assert [label(one.severity) for one in found] == ["Error", "Warning", "Note"]
    assert not Diagnosis("Some", split(4, 2), tuple(found)).ok
    assert Diagnosis("Some", split(4, 2), tuple(found[2:])).ok


class Giving(nn.Module):
    """Gives what ``change`` makes of its output."""

    def __init__(self, change, training_only=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.change, self.training_only = change, training_only

    def forward(self, x):
        out = self.body(x)
        return out if self.training_only and self.training else self.change(out)


@pytest.mark.parametrize("change", [lambda out: None, lambda out: {"a": None}, lambda out: out[:, :0]])
def test_outputs_without_a_value_are_not_called_alike(change):
    found = labkit.diagnose(Giving(change), torch.randn(80, 3), gpus=2)
    assert not found.ok
    assert "no value" in found.uncompared[0]
    assert "outputs" not in " ".join(found.compared)
    # One mode that has values is enough: a detector that finds nothing in eval mode.
    assert labkit.diagnose(Giving(change, training_only=True), torch.randn(80, 3), gpus=2).ok


def test_an_attribute_that_holds_itself_is_looked_into_to_some_depth():
    model = nn.Linear(5, 2)
    model.kept = [1]
    model.kept.append(model.kept)
    assert labkit.diagnose(model, X, gpus=2).ok
