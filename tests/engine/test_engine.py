"""The engine against torch.nn.parallel on the same simulated machine: bit for bit."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import parallel as theirs

import labkit
from labkit import engine as ours
from labkit.engine.explain import hint


@pytest.mark.parametrize(
    "options",
    [{}, {"device_ids": [1, 0]}, {"output_device": 1}, {"output_device": -1}, {"device_ids": ["cuda:1"]}]
    + [{"output_device": torch.device("cuda:1")}],
)
def test_what_can_be_asked_of_the_wrapper_is_pytorchs(options, gpus):
    one, other = (wrap(nn.Linear(5, 2).cuda(), **options) for wrap in (nn.DataParallel, labkit.DataParallel))
    for name in ("device_ids", "output_device", "src_device_obj", "dim"):
        expected, found = getattr(one, name), getattr(other, name)
        assert (type(expected), expected) == (type(found), found)
    assert isinstance(other, nn.DataParallel)
    assert vars(one).keys() == vars(other).keys()


def test_double_backward(gpus):
    results = []
    for wrap in (theirs.DataParallel, labkit.DataParallel):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).cuda(), torch.randn(4, 3, requires_grad=True)
        (grad,) = torch.autograd.grad(wrap(model)(x).sum(), x, create_graph=True)
        (grad**2).sum().backward()
        results.append([x.grad, model[0].weight.grad])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_the_verbs_have_pytorchs_signatures(gpus):
    model, x = nn.Linear(5, 2).cuda(), torch.randn(6, 5)
    for package in (theirs, ours):
        replicas = package.replicate(model, [0, 1])
        assert list(replicas[1].parameters()) == []
        pieces = package.scatter(x, [0, 1])
        outputs = package.parallel_apply(replicas, pieces, devices=[0, 1])
        assert torch.equal(package.gather(outputs, 0), model(x.cuda()))
    assert torch.equal(labkit.data_parallel(model, x), theirs.data_parallel(model, x))


def test_without_a_gpu_the_module_itself_runs():
    model, x = nn.Linear(5, 2), torch.randn(4, 5)
    assert torch.equal(labkit.DataParallel(model)(x), model(x))
    with pytest.raises(RuntimeError, match=r"there is no GPU.*labkit.simulate\(gpus=2\)"):
        labkit.data_parallel(model, x)


def test_imbalance_is_warned_of_in_pytorchs_words():
    with labkit.simulate(gpus=2, memory=["16 GiB", "8 GiB"]):
        for wrap in (theirs.DataParallel, labkit.DataParallel):
            with pytest.warns(UserWarning, match="exclude GPU 1 which") as caught:
                wrap(nn.Linear(2, 2))
            assert "less than 75% of the memory or cores of GPU 0" in " ".join(str(caught[0].message).split())
    with labkit.simulate(gpus=2, memory=["16 GiB", "12 GiB"]), warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs.DataParallel(nn.Linear(2, 2))
        labkit.DataParallel(nn.Linear(2, 2))


def test_lazy_modules_are_refused_until_they_have_seen_a_batch(wrap, gpus):
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU()).cuda()
    assert str(model[0].weight.device) == "cuda:0"
    with pytest.raises((RuntimeError, ValueError), match="uninitialized parameter"):
        wrap(model)(torch.ones(8, 3))
    model(torch.ones(8, 3, device="cuda"))
    assert str(model[0].weight.device) == "cuda:0"
    assert wrap(model)(torch.ones(8, 3)).shape == (8, 4)


def test_a_module_that_changes_between_calls_is_copied_as_it_is_now():
    with labkit.simulate(gpus=3):
        model = nn.Sequential(nn.Linear(3, 3)).cuda()
        wrapped, x = labkit.DataParallel(model), torch.randn(6, 3)

        def agrees():
            torch.testing.assert_close(wrapped(x), model(x.cuda()))

        agrees()
        model.append(nn.Tanh())
        agrees()
        model[0].weight = nn.Parameter(torch.ones(3, 3, device="cuda"))
        agrees()
        model.insert(1, nn.Linear(3, 3).cuda())
        agrees()
        model[0].register_buffer("shift", torch.ones(3, device="cuda"))
        agrees()
        del model[1]
        agrees()
        model[0].register_forward_hook(lambda module, given, output: output + module.shift)
        agrees()
        model.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
        agrees()


def test_hooks_run_once_for_each_replica(wrap):
    with labkit.simulate(gpus=3):
        model = nn.Sequential(nn.Linear(3, 2)).cuda()
        seen = []
        model[0].register_forward_hook(
            lambda module, given, output: seen.append(("forward", str(output.device)))
        )
        model[0].register_full_backward_hook(
            lambda module, into, out: seen.append(("backward", str(out[0].device)))
        )
        wrap(model)(torch.randn(6, 3)).sum().backward()
        devices = {f"cuda:{gpu}" for gpu in range(3)}
        assert {device for kind, device in seen if kind == "forward"} == devices
        assert {device for kind, device in seen if kind == "backward"} == devices
        assert len(seen) == 6


def test_only_a_replica_that_lost_its_parameters_warns_that_it_has_none(gpus):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).cuda()
    for linear, relu in ours.replicate(model, [0, 1]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert list(relu.parameters()) == []
        with pytest.warns(UserWarning, match="a replica has no parameters"):
            assert list(linear.parameters()) == []


def test_an_empty_batch(wrap):
    with labkit.simulate(gpus=3):
        model = nn.Linear(3, 2).cuda()
        output = wrap(model)(torch.empty(0, 3))
        assert output.shape == (0, 2)
        output.sum().backward()
        assert model.weight.grad.abs().sum() == 0


def test_a_gradient_that_the_weight_and_the_input_share_is_not_written(wrap, gpus):
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 3))

        def forward(self, x):
            return x + self.weight  # of both, the gradient is the very tensor that came from the output

    x, model = torch.ones(2, 3, device="cuda:0", requires_grad=True), Shift().cuda()
    (wrap(model)(x) ** 2).sum().backward()
    assert x.grad.tolist() == [[4.0] * 3] * 2
    assert model.weight.grad.tolist() == [[8.0] * 3]


def test_sparse_gradients_of_some_replicas(wrap):
    """A replica that does not use an embedding has a dense gradient of zeros for it."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.seldom = (nn.Embedding(5, 2, sparse=True) for _ in range(2))

        def forward(self, x):
            y = self.used(x)
            return y + self.seldom(x) if x.device.index == used_on else y

    for used_on in (0, 2):
        with labkit.simulate(gpus=3):
            model = Words().cuda()
            wrap(model)(torch.tensor([[0], [1], [2]])).sum().backward()
            assert model.used.weight.grad.is_sparse
            assert model.used.weight.grad.to_dense().sum(1).tolist() == [2, 2, 2, 0, 0]
            rows = [0.0] * 5
            rows[used_on] = 2
            assert not model.seldom.weight.grad.is_sparse
            assert model.seldom.weight.grad.sum(1).tolist() == rows


def test_the_sum_of_sparse_gradients_leaves_each_replicas_own_as_it_was():
    """A hook may have kept it."""
    kept = {}

    class Words(nn.Embedding):
        def forward(self, x):
            self.weight.register_hook(lambda grad, gpu=x.device.index: kept.update({gpu: grad}))
            return super().forward(x)

    with labkit.simulate(gpus=3):
        model = Words(5, 2, sparse=True).cuda()
        labkit.DataParallel(model)(torch.tensor([[0], [1], [2]])).sum().backward()
        assert model.weight.grad.to_dense().sum(1).tolist() == [2, 2, 2, 0, 0]
        for gpu, grad in kept.items():
            assert grad.to_dense().sum(1).tolist() == [2.0 * (word == gpu) for word in range(5)]
    assert sorted(kept) == [0, 1, 2]


def test_a_parameter_without_elements(wrap):
    class Empty(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.nothing = nn.Parameter(torch.ones(0, 8))

        def forward(self, x):
            return super().forward(x) + self.nothing.sum()

    with labkit.simulate(gpus=2):
        model = Empty().cuda()
        wrap(model)(torch.randn(4, 3)).sum().backward()
        assert model.nothing.grad.shape == (0, 8)
        assert str(model.nothing.grad.device) == "cuda:0"


@pytest.mark.parametrize("detach", [False, True])
def test_tensors_of_several_types_that_take_turns_stay_in_their_places(gpus, detach):
    norms = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(5), nn.BatchNorm1d(7)).cuda()
    norms[1].double()
    for at, tensor in enumerate((*norms.parameters(), *norms.buffers())):
        tensor.data.fill_(at)
    replica = labkit.replicate(norms, [0, 1], detach=detach)[1]
    names = [name for name, _ in (*norms.named_parameters(), *norms.named_buffers())]
    for at, name in enumerate(names):
        module, _, own = name.rpartition(".")
        copy = getattr(replica.get_submodule(module), own)
        assert copy.dtype == norms.state_dict()[name].dtype, name
        assert copy.shape == norms.state_dict()[name].shape, name
        assert (copy == at).all(), name


def test_a_module_that_cannot_be_looked_through_does_not_hide_the_users_error():
    class Closed(nn.Module):
        def named_modules(self, *arguments, **options):
            raise LookupError("nobody looks in here")

    assert hint(StopIteration(), Closed(), torch.device("cpu"), ()) == ""


@pytest.mark.parametrize(("outputs", "error", "words"), [
    (lambda row: [row, None], TypeError,
     "output is a Tensor of shape [2, 3] on replica 0 but None on replica 1: "
     "every replica must return the same structure"),
    (lambda row: ["no", (row,)], TypeError,
     "output is a str on replica 0 but a tuple on replica 1: every replica must return the same structure"),
    (lambda row: [{"of": [row]}, {"of": [row, row]}], ValueError,
     "output['of'] has different lengths: 1 on replica 0, 2 on replica 1"),
])  # fmt: skip
def test_gather_says_where_the_replicas_outputs_do_not_fit(gpus, outputs, error, words):
    with pytest.raises(error) as told:
        ours.gather(outputs(torch.ones(2, 3)), 0)
    assert str(told.value) == words


def test_a_device_is_a_number_or_a_name(gpus):
    with pytest.raises(TypeError, match="^target_device must be a GPU number or a device, got True$"):
        ours.gather([torch.ones(1)], True)
    with torch.cuda.device(1):  # "cuda" is the current one
        assert ours.gather([torch.ones(1), torch.zeros(1)], "cuda").get_device() == 1
    assert ours.replicate(nn.Linear(1, 1), []) == []


def test_parallel_apply_wants_as_many_of_each_as_there_are_modules(gpus):
    with pytest.raises(
        ValueError, match="^there are 2 modules but 1 devices: one is needed for each module$"
    ):
        ours.parallel_apply([nn.ReLU(), nn.ReLU()], [torch.ones(1), torch.ones(1)], devices=[0])


def test_an_error_that_no_text_makes_comes_as_a_runtime_error(gpus):
    class Odd(Exception):
        def __init__(self, one, other):
            super().__init__(one + other)

    class Fails(nn.Module):
        def forward(self):
            raise Odd("no ", "device")

    with pytest.raises(RuntimeError) as told:
        ours.parallel_apply([Fails()], [()])  # without a tensor among the inputs: on the current GPU
    assert type(told.value) is RuntimeError
    words = str(told.value)
    assert words.startswith("Caught Odd in replica 0 on cuda:0, given no tensors.\nOriginal Traceback")
    assert type(told.value.failures[0]) is Odd
