"""Each planted fault is found, and named."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labkit


def check(model, *inputs, gpus=4, **options):
    torch.manual_seed(0)
    return labkit.diagnose(model, *inputs, gpus=gpus, **options)


def names(found, severity=None):
    return {f.name for f in found.findings if severity in (None, f.severity)}


class Does(nn.Module):
    """A module with a weight, whose forward is a function."""

    def __init__(self, forward, **attributes):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.does = forward
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *inputs, **kwargs):
        return self.does(self, *inputs, **kwargs)


X = torch.linspace(-1, 1, 80).reshape(16, 5)


class CRNN(nn.Module):
    """Convolution, then an RNN that wants [time, batch, channels]."""

    def __init__(self):
        super().__init__()
        self.cnn, self.rnn, self.out = nn.Conv2d(1, 6, 3, padding=1), nn.LSTM(6 * 4, 8), nn.Linear(8, 11)

    def forward(self, images):
        features = self.cnn(images).flatten(1, 2).permute(2, 0, 1)
        return self.out(self.rnn(features)[0])


def test_the_permute_pitfall():
    found = check(CRNN(), torch.randn(8, 1, 4, 13), gpus=2)
    assert names(found, "error") == {"batch_moved"}
    finding = found.findings[0]
    assert "[13, 8, 11]" in finding.reason
    assert "[26, 4, 11]" in finding.reason
    assert finding.lesson == "06_batch_dim"
    assert finding.where == "output"


def test_the_pitfall_is_found_where_shapes_agree_by_chance():
    # 8 time steps and 8 rows: the wrapped model returns [16, 4, …], or, on one piece, the same shape.
    model = Does(lambda self, x: self.linear(x).transpose(0, 1))
    assert "batch_moved" in check(model, torch.randn(8, 8, 5), gpus=2)


def test_one_of_several_outputs_is_named():
    model = Does(lambda self, x: {"y": self.linear(x), "attention": self.linear(x)[:, None].transpose(0, 1)})
    found = check(model, X)
    assert [f.where for f in found.findings if f.name == "batch_moved"] == ["output['attention']"]


def test_an_output_over_all_rows():
    found = check(Does(lambda self, x: self.linear(x).mean(0)), X)
    assert names(found, "error") == {"batch_lost"}
    assert "[20]" in found.findings[0].reason


@pytest.mark.parametrize("rows", [2, 6, 16])
def test_a_table_that_every_replica_needs_whole(rows):
    table = torch.randn(rows, 5)
    found = check(Does(lambda self, x, table: self.linear(x) @ table.t()), X, table)
    cut = next(f for f in found.findings if f.name == "input_cut")
    assert cut.where == "input 1"
    assert "register_buffer" in cut.cure


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layers", [2, 4])
def test_a_hidden_state_is_cut_on_its_layers(batch_first, layers):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 7, layers, batch_first=batch_first)

        def forward(self, x, hidden):
            return self.rnn(x, hidden)[0]

    x = torch.randn(16, 3, 5) if batch_first else torch.randn(3, 16, 5)
    found = check(Model(), x, torch.randn(layers, 16, 7))
    assert next(f for f in found.findings if f.name == "hidden_state_cut").where == "input 1"
    assert ("input_axis" in found) is not batch_first


def test_time_first_input():
    found = check(nn.RNN(5, 6), torch.randn(12, 8, 5), gpus=2)
    assert next(f for f in found.findings if f.name == "input_axis").where == "input 0"
    assert found.split.batch == 8


def test_a_list_of_images():
    def forward(self, images):
        return torch.stack([image.mean() * self.linear.weight[0, 0] for image in images])

    found = check(Does(forward), [torch.randn(3, 6 + k, 5) for k in range(6)], gpus=3)
    assert next(f for f in found.findings if f.name == "list_cut").where == "input 0"


def test_a_list_of_images_whose_channels_go_their_own_ways():
    # Cut along the channels it gives a part of the right answer as well; the items are the rows all the same.
    model = Does(lambda self, images: torch.stack([image.mean(dim=(1, 2)) for image in images]))
    found = check(model, [torch.randn(3, 8, 8) for _ in range(6)], gpus=2)
    assert [(f.name, f.where) for f in found.findings] == [("list_cut", "input 0")]


def test_dropped_rows():
    found = check(Does(lambda self, x, y: self.linear(x)), X, torch.randn(2, 5))
    dropped = next(f for f in found.findings if f.name == "rows_dropped")
    assert "2 replicas run" in dropped.reason


def test_a_short_keyword():
    found = check(
        Does(lambda self, x, scale: self.linear(x) * scale), X, kwargs={"scale": torch.ones(2, 1)[:1]}
    )
    assert "rows_dropped" in found or "input_cut" in found
    assert any("keyword argument 'scale'" in f.where for f in found.findings)


def test_idle_gpus():
    found = check(nn.Linear(5, 2), X[:10], gpus=8)
    assert names(found, "warning") == {"idle_gpus"}
    assert found.findings[0].where == "cuda:5, cuda:6, cuda:7"


def test_a_number_computed_in_forward():
    even = check(Does(lambda self, x: self.linear(x).square().mean()), X)
    assert names(even, "warning") == {"scalar_output"}
    assert "loss.mean()" in even.findings[0].cure
    summed = check(Does(lambda self, x: self.linear(x).square().sum()), X)
    assert "loss.sum()" in summed.findings[0].cure


def test_a_biased_loss():
    found = check(Does(lambda self, x: self.linear(x).square().mean()), X[:10])
    assert names(found, "error") == {"biased_loss"}
    assert "3, 3, 3, 1" in found.findings[0].reason


def test_a_biased_loss_of_the_users_own():
    # Even pieces, but a loss that weighs the replicas' values wrongly.
    model = Does(lambda self, x: self.linear(x).square().mean())
    assert "biased_loss" in check(model, X[:10], loss=lambda out: out.mean())
    sound = check(nn.Linear(5, 2), X, loss=lambda out: out.square().mean())
    assert sound.ok


@pytest.mark.parametrize("value", [1.5, "text", True])
def test_outputs_that_are_no_tensors(value):
    found = check(Does(lambda self, x: (self.linear(x), value)), X)
    assert names(found, "error") == {"not_tensors"}
    assert "output[1]" in found.findings[0].where


def test_attributes_written_in_forward():
    def forward(self, x):
        self.last = self.linear(x)
        self.calls += 1
        return self.last

    found = check(Does(forward, calls=0, last=None), X)
    assert names(found, "warning") == {"attributes_lost"}
    assert {"calls", "last"} <= set(found.findings[0].where.split(", "))


def test_a_model_that_was_run_before_can_be_copied():
    def forward(self, x):
        self.last = self.linear(x)
        return self.last

    model = Does(forward)
    kept = model(X)
    assert "attributes_lost" in check(model, X)
    assert model.last is kept


def test_state_that_all_threads_write():
    def forward(self, x):
        self.history.append(x.mean())
        return self.linear(x)

    model = Does(forward, history=[])
    assert names(check(model, X), "warning") == {"shared_state"}
    assert model.history == []  # the user's own model is not touched


def test_batch_norm_on_tiny_pieces():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    assert names(check(model, X, gpus=4), "warning") == {"batch_norm"}
    assert "fails_in_training" in names(check(model, X[:9], gpus=8), "error")
    assert check(model, torch.randn(256, 5)).ok
    assert check(model.eval(), X).ok  # in eval mode there is nothing to say


def test_parameters_in_a_plain_list():
    model = Does(lambda self, x: self.linear(x) * self.scales[0])
    model.scales = [nn.Parameter(torch.ones(5))]
    found = check(model, X)
    assert names(found, "error") == {"not_registered"}
    assert found.findings[0].where == "scales[0]"


def test_a_tensor_in_a_plain_attribute():
    model = Does(lambda self, x: self.linear(x) + self.shift, shift=torch.ones(5))
    found = check(model, X)
    assert names(found, "error") == {"not_registered"}
    assert "register_buffer" in found.findings[0].cure


def test_a_device_named_in_forward():
    found = check(Does(lambda self, x: self.linear(x) + torch.ones(5, device="cuda:0")), X)
    assert names(found, "error") == {"fixed_device"}
    assert "test_planted_faults.py" in found.findings[0].where


def test_a_model_on_several_devices():
    with labkit.simulate(gpus=4):
        model = nn.Sequential(nn.Linear(5, 4).cuda(), nn.Linear(4, 2))
        found = check(model, X)
        assert names(found, "error") == {"several_devices"}
        assert found.findings[0].where == "cpu, cuda:0"
        assert str(model[0].weight.device) == "cuda:0"


def test_rows_that_see_one_another():
    found = check(Does(lambda self, x: self.linear(x) - self.linear(x).mean(0)), X)
    assert names(found, "error") == {"outputs_differ"}


def test_a_gradient_that_is_cut_off():
    def forward(self, x):
        return self.linear(x) + (0 if x.device.index == 0 else self.linear(x).detach() - self.linear(x))

    assert names(check(Does(forward), X), "error") == {"gradients_differ"}


def test_lazy_modules():
    found = check(nn.Sequential(nn.LazyLinear(4), nn.ReLU()), X)
    assert names(found, "error") == {"lazy_modules"}
    assert len(found.compared) == 2  # made, and then compared like any other


def test_a_model_that_fails_anyway():
    found = check(nn.Linear(3, 2), X)
    assert names(found, "error") == {"fails_on_one"}


def test_a_replica_that_fails():
    def forward(self, x):
        if len(x) < 16:
            raise ValueError("too few rows")
        return self.linear(x)

    found = check(Does(forward), X)
    assert names(found, "error") == {"fails_on_many"}
    assert "too few rows" in found.findings[0].reason
    assert "in forward" in found.findings[0].where


def test_memory_that_does_not_fit():
    model = nn.Linear(500, 500)
    x = torch.randn(64, 500)
    small = check(model, x, memory="2 MiB")
    assert names(small, "error") == {"memory_too_small"}
    assert check(model, x, memory="1 GiB").ok
    weights = 4 * (500 * 500 + 500)
    assert small.memory[0].weights == weights
    # Weights and gradients at least; the optimizer's two moments come on top.
    assert small.memory[0].peak >= 2 * weights
    assert small.memory[1].peak < small.memory[0].peak


def test_a_loss_that_cannot_take_the_output():
    found = check(nn.Linear(5, 2), X, loss=lambda out: F.mse_loss(out, torch.ones(3, 7)))
    assert names(found, "error") == {"loss_fails"}
