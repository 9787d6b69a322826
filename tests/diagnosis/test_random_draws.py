"""Random draws made alike: the same whatever the seed and the number of rows, and what such a draw may give."""

import random
import threading

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labkit
from labkit_diagnose.random_draws import RULES, Draws, python_state, seed_python

# Each draws [rows, 4] and says what lies in it.
DRAWS = {
    "rand": (lambda x: torch.rand(x.shape, device=x.device), 0, 1),
    "rand_like": (torch.rand_like, 0, 1),
    "uniform_": (lambda x: x.clone().uniform_(2, 3), 2, 3),
    "randn": (lambda x: torch.randn(x.shape, device=x.device), -3, 3),
    "randn_like": (torch.randn_like, -3, 3),
    "normal_": (lambda x: x.clone().normal_(5, 0.1), 4.7, 5.3),
    "normal": (lambda x: torch.normal(5 + 0 * x, 0.1), 4.7, 5.3),
    "normal of two tensors": (lambda x: torch.normal(5 + 0 * x, 0.1 + 0 * x), 4.7, 5.3),
    "normal of a number": (lambda x: torch.normal(5.0, 0.1 + 0 * x), 4.7, 5.3),
    "exponential_": (lambda x: x.clone().exponential_(100), 0, 0.03),
    "randint": (lambda x: torch.randint(5, 10, x.shape, device=x.device), 5, 9),
    "randint to": (lambda x: torch.randint(10, x.shape, device=x.device), 0, 9),
    "randint_like": (lambda x: torch.randint_like(x, 3, 7), 3, 6),
    "random_": (lambda x: x.clone().random_(2, 6), 2, 5),
    "random_ to": (lambda x: x.clone().random_(4), 0, 3),
    "random_ of all": (lambda x: x.int().random_(), 0, 99),
    "bernoulli": (lambda x: torch.bernoulli(0 * x + 0.5), 0, 1),
    "bernoulli_": (lambda x: x.clone().bernoulli_(0.5), 0, 1),
    "bernoulli_ by tensor": (lambda x: x.clone().bernoulli_(0 * x + 0.5), 0, 1),
    "bernoulli by number": (lambda x: torch.bernoulli(x, 0.5), 0, 1),
    "multinomial": (lambda x: torch.multinomial(0 * x + 0.25, 4), 0, 3),
    "multinomial with replacement": (lambda x: torch.multinomial(0 * x + 0.25, 4, replacement=True), 0, 3),
    "dropout": (lambda x: F.dropout(0 * x + 1, 0.5), 0, 2),
    "native_dropout": (lambda x: torch.native_dropout(0 * x + 1, 0.5, True)[0], 0, 2),
    "gumbel_softmax": (F.gumbel_softmax, 0, 1),
}
# What stands for the draw depends on what it is given alone.
EXACT = {
    "poisson": (lambda: torch.poisson(torch.tensor([[2.2, 3.9]])), [[2, 4]]),
    "binomial": (lambda: torch.binomial(torch.tensor([9.0]), torch.tensor([0.34])), [3]),
    "gamma": (lambda: torch._standard_gamma(torch.tensor([1.5])), [1.5]),
    "dirichlet": (lambda: torch._sample_dirichlet(torch.tensor([[1.0, 3.0]])), [[0.25, 0.75]]),
    "randperm": (lambda: torch.randperm(4), [3, 2, 1, 0]),
    "the likeliest": (lambda: torch.multinomial(torch.tensor([0.01, 0.98, 0.01]), 1), [1]),
    "the likeliest twice": (lambda: torch.multinomial(torch.tensor([0.01, 0.98, 0.01]), 2, True), [1, 1]),
    "kept with one half": (lambda: F.dropout(torch.ones(3), 0.5), [2, 2, 2]),
    "all dropped": (lambda: torch.native_dropout(torch.ones(2), 1.0, True)[0], [0, 0]),
    "nothing": (lambda: torch.rand(2, 0), [[], []]),
    "a number": (lambda: torch.rand(()), 0.3),
}


def drawn(draw, seed, constant=False):
    torch.manual_seed(seed)
    with Draws(constant).replace_draws():
        return draw()


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("name", DRAWS)
def test_every_row_draws_the_same(name, device):
    draw, low, high = DRAWS[name]
    with labkit.simulate(gpus=2):
        x, few = (torch.linspace(0.1, 0.1, 4, device=device).expand(rows, 4) for rows in (6, 2))
        found = drawn(lambda: draw(x), 1)
        assert str(found.device) == device
        assert torch.equal(found, drawn(lambda: draw(x), 2))
        assert torch.equal(found[:2], drawn(lambda: draw(few), 3))
        assert torch.equal(found, found[:1].expand(6, 4))
        assert len(found[0].unique()) > 1  # along the row they vary
        assert found.min() >= low
        assert found.max() <= high
        same = drawn(lambda: draw(x), 1, constant=True)
        assert len(same.unique()) == 1 or name == "multinomial"  # each place once


@pytest.mark.parametrize("name", EXACT)
def test_what_stands_for_a_draw(name):
    draw, expected = EXACT[name]
    assert torch.allclose(drawn(draw, 1).double(), torch.tensor(expected, dtype=torch.double))


def test_a_draw_with_one_dimension_may_be_over_the_rows():
    assert len(drawn(lambda: torch.rand(5), 1).unique()) == 1


def test_every_operator_that_draws_is_known():
    aten = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    operators = [
        getattr(packet, name)
        for packet in aten
        if hasattr(packet, "overloads")
        for name in packet.overloads()
    ]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    left = {
        one._schema.name.removeprefix("aten::")
        for one in operators
        if torch.Tag.nondeterministic_seeded in one.tags
        and has(one.name(), "CPU")
        and not has(one.name(), "CompositeImplicitAutograd")  # seen as the operators that it is made of
    } - RULES.keys()
    rare = {"cauchy_", "geometric_", "log_normal_", "rrelu_with_noise", "rrelu_with_noise_"}
    assert left - rare == {
        "_scaled_dot_product_flash_attention_for_cpu"
    }  # taken only where nothing is dropped


def test_whether_anything_was_drawn_is_known():
    draws = Draws()
    with draws.replace_draws():
        torch.ones(3) * 2
        assert not draws.drew
        torch.rand(3)
    assert draws.drew


def test_threads_draw_so_while_the_model_runs_in_them():
    draws, found = Draws(), []
    model = draws.replace_draws_in_replicas(nn.Dropout())
    model.register_forward_hook(
        lambda module, given, out: found.append((out, random.random(), numpy.random.rand()))
    )

    def run():
        found.clear()
        for _ in range(2):
            model(torch.ones(1, 6))
        return [(out.tolist(), *drawn) for out, *drawn in found]

    torch.manual_seed(0)
    first, again = run(), run()
    assert first == again
    assert first[0] == first[1]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [(out.tolist(), *drawn) for out, *drawn in found] == first
    assert torch.rand(1) != torch.rand(1)  # and no longer


def test_a_forward_that_fails_leaves_no_mode_behind():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Draws().replace_draws_in_replicas(Fails())(torch.ones(2))
    assert torch.rand(1) != torch.rand(1)


def test_within_a_run_python_goes_on_where_it_stands():
    draws = Draws()
    model = draws.replace_draws_in_replicas(nn.Identity())
    with draws.replace_draws():
        random.seed(3)
        first = random.random()
        random.seed(3)
        model(torch.ones(1))
        assert random.random() == first


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand, lambda: numpy.random.shuffle([1, 2])])
def test_a_number_that_python_or_numpy_draws_is_seen(draw):
    before = python_state()
    assert python_state() == before
    draw()
    assert python_state() != before
    seed_python(3)
    before = python_state()
    draw()
    seed_python(3)
    assert python_state() == before


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        q = self.project(x).view(len(x), 4, 2, 4).transpose(1, 2)
        dropped = 0.5 if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=dropped).flatten(1)


def test_attention_that_drops_inside_its_kernel_is_compared():
    found = labkit.diagnose(_Attention(), torch.randn(8, 4, 8), gpus=2)
    assert [finding.kind for finding in found.findings] == []
