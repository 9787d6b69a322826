"""Random numbers belong to their GPU: each function draws from its generator and leaves all others alone."""

import copy
import functools
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import labkit

pytestmark = pytest.mark.usefixtures("gpus")


def zeros(*shape):
    return torch.zeros(*shape or (7,), device="cuda:1")


def halves(*shape):
    return zeros(*shape) + 0.5


def attention():
    query = halves(1, 1, 4, 8)
    return F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)


@functools.cache
def made(kind, *sizes, **options):
    """A module on the host, made once: making it draws too."""
    return kind(*sizes, **options)


def heads():
    attend = copy.deepcopy(made(nn.MultiheadAttention, 8, 2, dropout=0.5)).cuda(1)
    return attend(halves(4, 1, 8), halves(4, 1, 8), halves(4, 1, 8))[0]


def recurrent(kind):
    def draw():
        return copy.deepcopy(made(kind, 2, 4, num_layers=2, dropout=0.5)).cuda(1)(halves(3, 1, 2))[0]

    return draw


DRAWS = {
    "rand": lambda: torch.rand(7, device="cuda:1"), "randn": lambda: torch.randn(7, device="cuda:1"),
    "randint": lambda: torch.randint(1000, (7,), device="cuda:1"),
    "randperm": lambda: torch.randperm(100, device="cuda:1"), "rand_like": lambda: torch.rand_like(zeros()),
    "randn_like": lambda: torch.randn_like(zeros()),
    "randint_like": lambda: torch.randint_like(zeros(), 1000),
    "normal": lambda: torch.normal(zeros(), halves()),
    "normal of a size": lambda: torch.normal(0.0, 1.0, (7,), device="cuda:1"),
    "bernoulli": lambda: torch.bernoulli(halves(63)), "multinomial": lambda: torch.multinomial(halves(63), 8),
    "poisson": lambda: torch.poisson(halves(63) * 20),
    "binomial": lambda: torch.binomial(halves(63) * 100, halves(63)),
    "gamma": lambda: torch._standard_gamma(halves()), "dirichlet": lambda: torch._sample_dirichlet(halves()),
    "Tensor.bernoulli": lambda: halves(63).bernoulli(),
    "Tensor.multinomial": lambda: halves(63).multinomial(8), "bernoulli_": lambda: zeros(64).bernoulli_(),
    "normal_": lambda: zeros().normal_(), "uniform_": lambda: zeros().uniform_(),
    "random_": lambda: zeros().random_(1000), "exponential_": lambda: zeros().exponential_(),
    "geometric_": lambda: zeros().geometric_(0.1), "cauchy_": lambda: zeros().cauchy_(),
    "log_normal_": lambda: zeros().log_normal_(), "dropout": lambda: F.dropout(halves(63)),
    "dropout1d": lambda: F.dropout1d(halves(1, 64, 2)), "dropout2d": lambda: F.dropout2d(halves(1, 64, 2, 2)),
    "dropout3d": lambda: F.dropout3d(halves(1, 64, 2, 2, 2)),
    "alpha_dropout": lambda: F.alpha_dropout(halves(63), training=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(halves(1, 64, 2), training=True),
    "torch.dropout": lambda: torch.dropout(halves(63), 0.5, True),
    "torch.dropout_": lambda: torch.dropout_(halves(63), 0.5, True),
    "torch.native_dropout": lambda: torch.native_dropout(halves(63), 0.5, True)[0],
    "torch.feature_dropout": lambda: torch.feature_dropout(halves(1, 64, 2), 0.5, True),
    "torch.alpha_dropout": lambda: torch.alpha_dropout(halves(63), 0.5, True),
    "rrelu": lambda: F.rrelu(-halves(), training=True),
    "torch.rrelu": lambda: torch.rrelu(-halves(), training=True),
    "torch.rrelu_": lambda: torch.rrelu_(-halves(), training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(halves()),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(
        torch.arange(1e4).view(1, 1, 100, 100).cuda(1), 2, 33),
    "fractional_max_pool3d": lambda: F.fractional_max_pool3d(
        torch.arange(1e6).view(1, 100, 100, 100).cuda(1), 2, 33),
    "attention": attention, "heads": heads, "lstm": recurrent(nn.LSTM), "gru": recurrent(nn.GRU),
    "rnn": recurrent(nn.RNN), "init.normal_": lambda: nn.init.normal_(zeros()),
    "init.uniform_": lambda: nn.init.uniform_(zeros()),
    "init.kaiming_uniform_": lambda: nn.init.kaiming_uniform_(zeros(3, 5)),
    "init.xavier_normal_": lambda: nn.init.xavier_normal_(zeros(3, 5)),
    "init.trunc_normal_": lambda: nn.init.trunc_normal_(zeros()),
    "init.orthogonal_": lambda: nn.init.orthogonal_(zeros(3, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.filterwarnings("ignore:dropout1d")
def test_a_draw_on_a_gpu_moves_that_gpus_generator_alone(name):
    draw = DRAWS[name]
    draw()
    torch.cuda.manual_seed_all(7)
    host, other = torch.get_rng_state(), torch.cuda.get_rng_state(0)
    first, second = draw(), draw()
    assert first.device == torch.device("cuda:1")
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(torch.cuda.get_rng_state(0), other)
    torch.cuda.manual_seed_all(7)
    assert torch.equal(draw(), first)


def test_threads_that_draw_wait_for_each_other(gpus):
    """Functions without a generator of their own borrow the process's: it belongs to one GPU at a time."""
    torch.cuda.manual_seed_all(3)
    expected = [F.dropout(torch.ones(100, device=f"cuda:{k}")) for k in range(2)]
    torch.cuda.manual_seed_all(3)
    drawn = []
    thread = threading.Thread(target=lambda: drawn.append(F.dropout(torch.ones(100, device="cuda:1"))))
    with gpus.random.draw_by_default_generator(gpus.gpus[0]):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        drawn.append(torch.dropout(torch.ones(100), 0.5, True))
    thread.join()
    assert [torch.equal(one.cpu(), other.cpu()) for one, other in zip(drawn, expected, strict=True)] == [
        True,
        True,
    ]


def test_a_machine_begins_with_the_seed_that_was_set_before_it():
    torch.manual_seed(11)
    with labkit.simulate(gpus=1):
        first = torch.rand(3, device="cuda")
        torch.manual_seed(11)
        assert torch.equal(torch.rand(3, device="cuda"), first)


def test_a_machine_that_comes_back_goes_on_where_its_generators_stood(gpus):
    torch.manual_seed(5)
    expected = [torch.rand(3, device="cuda:1") for _ in range(2)]
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3, device="cuda:1"), expected[0])
    with labkit.simulate(gpus=2):
        torch.rand(3, device="cuda:1")
    assert torch.equal(torch.rand(3, device="cuda:1"), expected[1])


def test_a_draw_like_another_is_where_its_own_device_says():
    torch.cuda.manual_seed_all(7)
    away = torch.cuda.get_rng_state(1)
    assert torch.rand_like(zeros(), device="cuda:0").device == torch.device("cuda:0")
    assert torch.equal(torch.cuda.get_rng_state(1), away)
    assert torch.equal(
        torch.rand_like(zeros()), torch.rand(7, generator=torch.Generator().manual_seed(7)).to("cuda:1")
    )


def test_a_cloned_generator_is_on_the_same_gpu_and_goes_on_alike():
    with labkit.simulate(gpus=2):
        for device in ("cuda:1", "cpu"):
            one = torch.Generator(device).manual_seed(3)
            torch.rand(5, device=device, generator=one)
            other = one.clone_state()
            assert other.device == torch.device(device)
            first, second = (torch.rand(4, device=device, generator=each) for each in (one, other))
            assert torch.equal(first, second)
            torch.rand(1, device=device, generator=one)
            assert not torch.equal(one.get_state(), other.get_state())


def test_numbers_go_on_alike_from_a_state():
    torch.cuda.manual_seed(2**63 + 5)
    torch.randn(7, device="cuda"), torch.rand(2000, device="cuda"), nn.init.normal_(zeros(3).cuda(0))
    state = torch.cuda.get_rng_state()
    assert torch.cuda.default_generators[0].initial_seed() == 2**63 + 5
    first = [torch.randn(5, device="cuda"), F.dropout(torch.ones(100, device="cuda"))]
    torch.cuda.set_rng_state(state)
    again = [torch.randn(5, device="cuda"), F.dropout(torch.ones(100, device="cuda"))]
    assert all(map(torch.equal, first, again))


def test_a_state_of_a_real_gpu_is_taken_and_other_sizes_are_refused():
    drawn = []
    for seed, offset in ((42, 0), (42, 4), (42, 0), (-7, 4 * 10**12)):
        torch.cuda.set_rng_state(torch.tensor([seed, offset]).view(torch.uint8))
        assert torch.cuda.initial_seed() == seed % 2**64
        drawn.append(torch.rand(3, device="cuda").tolist())
    assert drawn[0] == drawn[2] == torch.rand(3, generator=torch.Generator().manual_seed(42)).tolist()
    assert len({tuple(one) for one in drawn}) == 3
    with pytest.raises(RuntimeError, match="RNG state size to be 3"):
        torch.cuda.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_a_checkpoint_draws_again_what_it_drew():
    x = torch.ones(500, device="cuda:1", requires_grad=True)
    for reentrant in (False, True):
        y = checkpoint(lambda x: F.dropout(x) * torch.rand_like(x), x, use_reentrant=reentrant)
        (grad,) = torch.autograd.grad(y.sum(), x) if not reentrant else (None,)
        if reentrant:
            y.sum().backward()
            grad = x.grad
        assert torch.equal(grad, y.detach())
