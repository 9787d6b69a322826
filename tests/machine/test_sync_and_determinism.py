"""use_deterministic_algorithms: CUDA's objections, and nothing while it is off; and which calls let the host wait."""

import pytest
import torch
import torch.nn.functional as F
from torch.cuda import comm

import labkit
import simgpu
from simgpu import hooks
from simgpu.ops.mode import MachineMode


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    torch.use_deterministic_algorithms(False)


def image(*shape):
    return torch.rand(1, 1, *shape, device="cuda:1", requires_grad=True)


def summed(call):
    return lambda: call().sum().backward()


def unseen(call):
    """A backward that is called where no function mode sees it."""

    def run():
        loss = call().sum()
        with torch._C.DisableTorchFunction():
            loss.backward()

    return run


UNORDERED = [
    (summed(lambda: F.avg_pool3d(image(4, 4, 4), 2)), "avg_pool3d_backward_cuda"),
    (summed(lambda: F.adaptive_avg_pool2d(image(4, 4), 2)), "adaptive_avg_pool2d_backward_cuda"),
    (summed(lambda: F.adaptive_avg_pool3d(image(4, 4, 4), 2)), "adaptive_avg_pool3d_backward_cuda"),
    (summed(lambda: F.adaptive_max_pool2d(image(4, 4), 2)), "adaptive_max_pool2d_backward_cuda"),
    (summed(lambda: F.fractional_max_pool2d(image(4, 4), 2, 2)), "fractional_max_pool2d_backward_cuda"),
    (summed(lambda: F.grid_sample(image(4, 4), torch.zeros(1, 2, 2, 2, device="cuda:1"), align_corners=False)),
     "grid_sampler_2d_backward_cuda"),
    (summed(lambda: F.pad(image(4), (1, 1), mode="reflect")), "reflection_pad1d_backward_out_cuda"),
    (summed(lambda: F.interpolate(image(4), scale_factor=2, mode="linear")), "upsample_linear1d_backward_out_cuda"),
    (summed(lambda: F.interpolate(image(4, 4), scale_factor=2, mode="bicubic")),
     "upsample_bicubic2d_backward_out_cuda"),
    (summed(lambda: F.interpolate(image(4, 4), scale_factor=2, mode="bilinear", antialias=True)),
     "upsample_bilinear2d_aa_backward_out_cuda"),
    (summed(lambda: F.ctc_loss(torch.rand(4, 1, 3, device="cuda:1", requires_grad=True).log_softmax(2),
                               torch.tensor([[1]], device="cuda:1"), [4], [1])), "ctc_loss_backward_gpu"),
    (summed(lambda: F.embedding_bag(torch.tensor([[0, 1]], device="cuda:1"), image(3)[0, 0].expand(2, 3).clone(),
                                    mode="max")), "embedding_bag_backward_cuda_max"),
    (lambda: torch.histc(image(3).detach()), "_histc_cuda with floating point input"),
    (lambda: torch.bincount(torch.ones(2, dtype=torch.int64, device="cuda:1"), torch.ones(2, device="cuda:1")),
     "_bincount_cuda"),
    (lambda: image(3).median(-1), "median CUDA with indices output"),
    (lambda: F.nll_loss(image(2, 2).log_softmax(1), torch.zeros(1, 2, 2, dtype=torch.int64, device="cuda:1")),
     "nll_loss2d_forward_out_cuda_template"),
    (lambda: torch.ones(3, device="cuda:1").index_reduce_(
        0, torch.tensor([0], device="cuda:1"), torch.ones(1, device="cuda:1"), "prod"), "index_reduce_cuda"),
    (lambda: torch.ones(3, device="cuda:1").scatter_reduce(
        0, torch.tensor([0], device="cuda:1"), torch.ones(1, device="cuda:1"), "prod"), "scatter_reduce_cuda_prod_"),
    (lambda: torch.ones(3, device="cuda:1").scatter(
        0, torch.tensor([0], device="cuda:1"), torch.ones(1, device="cuda:1"), reduce="multiply"),
     "scatter_reduce_cuda_kernel"),
    (lambda: torch.ones(3, device="cuda:1").long().scatter_(
        0, torch.tensor([0], device="cuda:1"), torch.ones(1, device="cuda:1").long(), reduce="add"),
     "scatter_reduce_cuda_kernel"),
    (unseen(lambda: F.adaptive_avg_pool2d(image(4, 4), 2)), "adaptive_avg_pool2d_backward_cuda"),
    (lambda: torch.ones(3, device="cuda:1").put_(
        torch.tensor([0], device="cuda:1"), torch.ones(1, device="cuda:1"), True), "put_"),
    (lambda: F.max_unpool2d(torch.ones(1, 1, 1, 1, device="cuda:1"), torch.zeros(
        1, 1, 1, 1, dtype=torch.int64, device="cuda:1"), 2), "max_unpooling2d_forward_out"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "caller"), UNORDERED, ids=[caller for _, caller in UNORDERED])
@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The reduce argument of torch.scatter")
def test_an_operator_without_an_order_objects(gpus, call, caller):
    call()  # nobody asked
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value).startswith(
        f"{caller} does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism"
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=r"does not have a deterministic .*\(True, warn_only=True\)'\. You"):
        call()
    torch.use_deterministic_algorithms(False)
    assert type(simgpu.machine_in_use().mode) is MachineMode
    call()


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
def test_a_sum_of_floats_that_scatter_adds_has_an_order(gpus):
    torch.use_deterministic_algorithms(True)
    ones, first = torch.ones(3, device="cuda:1"), torch.tensor([0, 0], device="cuda:1")
    assert ones.scatter(0, first, ones[:2], reduce="add").tolist() == [3, 1, 1]


def test_what_has_an_order_goes_on(gpus):
    """Functions that take another way for a GPU, and all that is in order anyway."""
    host = torch.rand(1, 1, 4, 4, 4, requires_grad=True)
    calls = {
        "bilinear": lambda x: F.interpolate(x[:, :, 0], scale_factor=2, mode="bilinear"),
        "replicate": lambda x: F.pad(x[:, :, 0], (1, 1, 1, 1), mode="replicate"),
        "max_pool3d": lambda x: F.max_pool3d(x, 2, return_indices=True)[0],
        "average of one": lambda x: F.adaptive_avg_pool2d(x[:, :, 0], 1),
        "index": lambda x: x[:, :, [0, 0]],
        "sum": lambda x: x.scatter_add(
            2, torch.zeros(1, 1, 1, 4, 4, dtype=torch.int64).to(x.device), x[:, :, :1]
        ),
    }
    for name, call in calls.items():
        host.grad = None
        call(host).sum().backward()
        torch.use_deterministic_algorithms(True)
        x = host.detach().to("cuda:1").requires_grad_()
        result = call(x)
        assert result.device.index == 1, name
        result.sum().backward()
        torch.testing.assert_close(x.grad.cpu(), host.grad)
        torch.use_deterministic_algorithms(False)


def test_the_host_is_left_alone_and_a_machine_finds_it_on():
    torch.use_deterministic_algorithms(True)
    with labkit.simulate(gpus=1):
        torch.rand(3).median(-1)
        with pytest.raises(RuntimeError, match="median CUDA with indices output does not have"):
            torch.rand(3, device="cuda").median(-1)
        torch.set_deterministic_debug_mode("default")
        torch.rand(3, device="cuda").median(-1)
    torch.use_deterministic_algorithms(True)
    torch.rand(3).median(-1)


def test_uninitialized_memory_is_filled(gpus):
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3, device="cuda:1").isnan().all()
    assert torch.ones(1, device="cuda:1").resize_(3)[1:].isnan().all()
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        torch.empty(3, device="cuda:1")
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture
def waited(gpus):
    """The machines that were waited for; their operators are watched."""
    found = []
    hooks.host_waited.add(found.append)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield found
    hooks.host_waited.remove(found.append)


WAITS = [
    lambda x: x.sum().item(), lambda x: bool(x.sum()), lambda x: x.nonzero(), lambda x: x[x > 1],
    lambda x: x.masked_fill(x > 1, x.sum()),
    lambda x: x.clone().__setitem__(x > 1, torch.zeros(2, device="cuda:1")), lambda x: x.unique(),
    lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.tolist(), lambda x: torch.ones(3).to("cuda:1"),
    lambda x: torch.ones(3).cuda(), lambda x: x.copy_(torch.ones(3)),
    lambda x: torch.tensor([1.0], device="cuda:1"), lambda x: torch.equal(x, x + 1),
    lambda x: torch.bincount(x.long()), lambda x: x.repeat_interleave(x.long()),
    lambda x: x.clone().__setitem__(x > 1, x[0]),  # masked by the GPU's own number
    lambda x: torch.linalg.inv(x.diag()), lambda x: torch.cuda.current_stream().synchronize(),
    lambda x: str(x),
]  # fmt: skip


WORKS_ON = [
    lambda x: x + 1, lambda x: x.to("cuda:0"), lambda x: x.to("cpu", non_blocking=True),
    lambda x: torch.ones(3).to("cuda:1", non_blocking=True), lambda x: torch.ones(3).cuda(1, True),
    lambda x: x.copy_(torch.ones(3), non_blocking=True), lambda x: x[[0, 1]],
    lambda x: x.__setitem__(x > 1, 5.0),
    lambda x: x[torch.tensor(1)],  # the host's own number
    lambda x: x[torch.tensor([True, False, True])],  # a mask of the host's
    lambda x: torch.zeros(3, device="cuda:1"), lambda x: x.requires_grad_().sum().backward(),
    lambda x: torch.ones(3).tolist(), lambda x: comm.broadcast(torch.ones(2), (0, 1)),
    lambda x: torch.cuda.synchronize(),
]  # fmt: skip


@pytest.mark.parametrize("call", WAITS)
@pytest.mark.filterwarnings("ignore")
def test_what_waits_is_told(gpus, waited, call):
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda:1")
    waited.clear()
    call(x)
    assert set(waited) == {gpus}


@pytest.mark.parametrize("call", WORKS_ON)
def test_what_does_not_wait_is_silent(waited, call):
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda:1")
    waited.clear()
    call(x)
    assert waited == []


def test_backward_waits_too(waited):
    x = torch.ones(3, device="cuda:1", requires_grad=True)
    y = x[torch.tensor([True, False, True], device="cuda:1")].sum()
    waited.clear()
    torch.autograd.backward(y)
    assert waited
