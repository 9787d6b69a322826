"""Sparse tensors and DLPack: what is made of several parts, or handed to others, stays where it is."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.dlpack import DLDeviceType, from_dlpack

pytestmark = pytest.mark.usefixtures("gpus")
CUDA0, CUDA1, CPU = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")


def places(sparse):
    """The devices of a sparse tensor and of its parts."""
    if sparse.layout is torch.sparse_coo:
        parts = sparse._indices(), sparse._values()
    elif sparse.layout is torch.sparse_csr:
        parts = sparse.crow_indices(), sparse.col_indices(), sparse.values()
    else:
        parts = sparse.ccol_indices(), sparse.row_indices(), sparse.values()
    return {sparse.device, *(part.device for part in parts)}


def test_indices_are_brought_to_a_named_device_or_refused_and_stay_where_they_were():
    indices, values = torch.tensor([[0, 1], [0, 1]]), torch.ones(2, device=CUDA1, requires_grad=True)
    there = torch.sparse_coo_tensor([[0, 1], [0, 1]], values)
    assert places(there) == {CUDA1}
    with pytest.raises(RuntimeError, match="at least two devices, cpu and cuda:1!"):
        torch.sparse_coo_tensor(indices, values)
    assert places(torch.sparse_coo_tensor(indices, values, device="cuda:0")) == {CUDA0}
    assert places(torch.sparse_coo_tensor(indices, values, (2, 2), device="cpu")) == {CPU}
    rows, columns = torch.tensor([0, 1, 2], device=CUDA0), torch.tensor([0, 1])
    for first in (rows, rows.cuda(1)):
        with pytest.raises(RuntimeError, match="at least two devices, cuda:[01] and cpu"):
            torch.sparse_csr_tensor(first, columns, values)
    assert places(torch.sparse_csc_tensor(rows, columns, values.detach(), device=CUDA0)) == {CUDA0}
    assert (indices.device, columns.device, rows.device, values.device) == (CPU, CPU, CUDA0, CUDA1)
    there.to_dense().sum().backward()
    assert values.grad.device == CUDA1
    with torch.device("cuda:1"):
        assert places(torch.sparse_coo_tensor([[0], [0]], [1.0])) == {CUDA1}
    assert places(torch.sparse_coo_tensor(size=(2, 3), device=CUDA0)) == {CUDA0}


@pytest.mark.parametrize("device", [CPU, CUDA1])
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_sparse_tensor_is_written_into(layout, device):
    one = getattr(torch.eye(3, device=device), layout)()
    out = getattr(torch.zeros(3, 3, device=device), layout)()
    assert torch.add(one, one, out=out) is out
    assert places(out) == {device}
    assert torch.equal(out.to_dense(), 2 * torch.eye(3, device=device))


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_copies_between_sparse_tensors_stay(layout):
    one, other, host = (getattr(torch.eye(3, device=device), layout)() for device in (CUDA1, CUDA0, CPU))
    for source in (other, host):
        assert one.copy_(source) is one
        assert places(one) == {CUDA1}
    host.copy_(one)
    assert (places(host), places(other)) == ({CPU}, {CUDA0})
    assert places(one * 2) == places(one.clone()) == {CUDA1}


def test_functionalized_code():
    x = torch.ones(2, device=CUDA1)
    y = torch.func.functionalize(lambda a: a.clone().add_(1))(x)
    assert (y.device, y.tolist()) == (CUDA1, [2, 2])


def test_dlpack_is_refused_and_never_passes_a_gpu_for_the_host():
    x = torch.arange(4.0, device=CUDA1)
    for hand_over in (
        np.from_dlpack,
        torch.from_dlpack,
        torch.utils.dlpack.to_dlpack,
        torch.Tensor.__dlpack__,
    ):
        with pytest.raises(NotImplementedError, match=r"use \.cpu\(\) first"):
            hand_over(x)
    assert x.__dlpack_device__() == (DLDeviceType.kDLCUDA, 1)
    assert np.from_dlpack(x.cpu()).tolist() == [0, 1, 2, 3]
    assert torch.from_dlpack(np.ones(2)).device == CPU
    assert from_dlpack(torch.utils.dlpack.to_dlpack(x.cpu())).device == CPU


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout, gpus):
    lists = {
        device: [torch.ones(2, 4, device=device), torch.ones(3, 4, device=device)] for device in (CPU, CUDA1)
    }
    made = [
        torch.nested.nested_tensor(lists[CPU], device="cuda:1", layout=layout),
        torch.nested.nested_tensor(lists[CUDA1], layout=layout),
        torch.nested.as_nested_tensor(lists[CUDA1], layout=layout),
        torch.nested.nested_tensor(lists[CPU], layout=layout).to(CUDA1),
    ]
    for nested in made:
        assert (nested.device, nested.values().device, (nested * 2).device) == (CUDA1, CUDA1, CUDA1)
        assert {piece.device for piece in nested.unbind()} == {CUDA1}
        assert torch.nested.to_padded_tensor(nested, 0.0).device == CUDA1
    assert torch.nested.nested_tensor(lists[CPU], layout=layout).device == CPU
    assert lists[CPU][0].device == CPU
    nested = torch.nested.nested_tensor(lists[CUDA1], layout=layout, requires_grad=True)
    (torch.nested.to_padded_tensor(nested, 0.0) * 2).sum().backward()
    assert nested.grad.device == CUDA1


def test_fake_tensors_stand_for_tensors_on_simulated_gpus(gpus):
    plain = torch.ones(2, 2, device=CUDA1)
    before = gpus.memory(1)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = torch.empty(2, 2, device="cuda:1")
        made = [
            x, x + 1, x @ plain, torch.zeros_like(x), mode.from_tensor(plain), torch.empty(2).cuda(1),
            plain * 2,
        ]  # fmt: skip
        assert {each.device for each in made} == {CUDA1}
        assert {type(each) for each in made} == {FakeTensor}
        assert (x.is_cuda, x.get_device(), x.cpu().device, x.to(CUDA0).device) == (True, 1, CPU, CUDA0)
        assert torch.empty(2**40, device="cuda:1").shape == (2**40,)
        with pytest.raises(RuntimeError, match="cuda:1 and cuda:0"):
            x + x.to(CUDA0)
    assert gpus.memory(1) == before
    assert torch.empty(2, device="cuda:1").device == CUDA1


def test_fake_tensors_on_simulated_gpus_have_no_gradients():
    parameter, plain = torch.nn.Parameter(torch.ones(2, 2, device=CUDA1)), torch.ones(2, 2, device=CUDA1)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        on_host = torch.ones(2, requires_grad=True)
        for ask in (
            lambda: torch.empty(2, device="cuda:1", requires_grad=True),
            lambda: on_host.to("cuda:1"),
            lambda: on_host.to(device=0),
            lambda: on_host.cuda(),
            lambda: mode.from_tensor(parameter),
            lambda: mode.from_tensor(plain).requires_grad_(),
            lambda: plain @ parameter,
        ):
            with pytest.raises(NotImplementedError, match=r"a GPU simulated by labkit, has no gradients"):
                ask()
        with torch.no_grad():
            assert (plain @ parameter).device == on_host.to("cuda:1").device == CUDA1
        assert torch.nn.Linear(2, 2)(torch.empty(1, 2)).device == CPU
