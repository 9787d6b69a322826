"""torch.cuda.comm on simulated GPUs. The ground of PyTorch's own TestCudaComm (22 cases), in our words.

PyTorch's files run on the machine unmodified: ``labkit run --gpus 2 -m pytest test_cuda_multigpu.py``.
"""

import itertools

import pytest
import torch
from torch.cuda import comm

pytestmark = pytest.mark.usefixtures("gpus")
HOMES = ["cpu", "cuda:0", "cuda:1"]


def places(tensors):
    return [str(t.device) for t in tensors]


@pytest.mark.parametrize("home", ["cpu", "cuda:0"])
def test_broadcast_gives_each_gpu_a_copy(home):
    x = torch.randn(5, 5, device=home)
    copies = comm.broadcast(x, (0, 1))
    assert places(copies) == ["cuda:0", "cuda:1"]
    assert all(torch.equal(copy.cpu(), x.cpu()) for copy in copies)
    outs = [torch.empty(5, 5, device=f"cuda:{k}") for k in range(2)]
    assert comm.broadcast(x, out=outs)[1] is outs[1]
    assert torch.equal(outs[1].cpu(), x.cpu())


def test_broadcast_refuses_what_cannot_be():
    x = torch.randn(3, device="cuda:0")
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
        comm.broadcast(x, (0, 1), out=[x])
    with pytest.raises(RuntimeError, match="output tensor at index 1 has device 'cpu'"):
        comm.broadcast(x, out=[x.clone(), torch.empty(3)])
    with pytest.raises(RuntimeError, match=r"same shape as the source tensor \[3\].*index 1 has shape \[4\]"):
        comm.broadcast(x, out=[x.clone(), torch.empty(4, device="cuda:1")])


def test_coalesced_broadcast_keeps_types_order_and_identity():
    tensors = [
        torch.randn(300), torch.randn(300).double(), torch.arange(4), torch.randn(2, 2).to_sparse(), torch.empty(0),
        torch.randn(3, dtype=torch.complex64),
    ]  # fmt: skip
    tensors = [t.cuda() for t in tensors]
    first, second = comm.broadcast_coalesced(
        [torch.view_as_real(t) if t.is_complex() else t for t in tensors], (0, 1)
    )
    assert first[0] is tensors[0]
    assert places(second) == ["cuda:1"] * 6
    for one, other in zip(first, second, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.to_dense().cpu(), other.to_dense().cpu())


def test_each_copy_of_a_coalesced_broadcast_has_a_version_counter_of_its_own():
    # They travel as one and are views of it, as in C++, and still one written in place leaves the others unchanged.
    rows = comm.broadcast_coalesced(
        [torch.ones(300, device="cuda:0"), torch.ones(2, device="cuda:0")], (0, 1)
    )
    first, second = rows[1]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    first.add_(1)
    assert (first._version, second._version) == (1, 0)


def test_reduce_add():
    x, y = torch.randn(5, 5), torch.randn(5, 5)
    total = comm.reduce_add((x.cuda(0), y.cuda(1)))
    assert total.device == torch.device("cuda:0")
    assert torch.equal(total.cpu(), x + y)
    alone = x.cuda(0)
    assert comm.reduce_add((alone,)) is alone
    rows = [[t.cuda(k) for t in (x, y.double(), x.to_sparse())] for k in range(2)]
    summed = comm.reduce_add_coalesced(rows)
    assert [t.dtype for t in summed] == [torch.float32, torch.float64, torch.float32]
    assert torch.equal(summed[2].to_dense().cpu(), 2 * x)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize(("sizes", "dim"), [(None, 0), (None, -1), ((2, 4), 0), ((1, 3), 1)])
def test_scatter(home, sizes, dim):
    x = torch.randn(6, 4, device=home)
    pieces = comm.scatter(x, (0, 1), sizes, dim)
    expected = x.chunk(2, dim) if sizes is None else x.split(sizes, dim)
    assert places(pieces) == ["cuda:0", "cuda:1"]
    for piece, want in zip(pieces, expected, strict=True):
        assert torch.equal(piece.cpu(), want.cpu())
        if home == str(piece.device):
            assert piece.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()  # a view
    outs = [torch.empty_like(piece) for piece in pieces]
    comm.scatter(x, out=outs, dim=dim)
    assert all(torch.equal(out, piece) for out, piece in zip(outs, pieces, strict=True))


@pytest.mark.parametrize(("call", "text"), [
    (lambda x: comm.scatter(x, ()), "Expected at least one device to scatter to"),
    (lambda x: comm.scatter(x, out=()), "Expected at least one output tensor to scatter to"),
    (lambda x: comm.scatter(x, (0, 1), (1, 2, 3)), r"len\(devices\) = 2 and len\(chunk_sizes\) = 3"),
    (lambda x: comm.scatter(x, (0, 1), out=[x]), "'devices' must not be specified"),
    (lambda x: comm.scatter(x, out=[torch.empty(3, 4, device="cuda:0")]),
     "does not match the source tensor size"),
    (lambda x: comm.scatter(x, out=[torch.empty(6, 3, device="cuda:0")]), "has incorrect shape"),
    (lambda x: comm.scatter(x, dim=1, out=[torch.empty(6, device="cuda:0")]), "has incorrect shape"),
    (lambda x: comm.scatter(x, out=[torch.empty(6, 4)]), "but output tensor at index 0 has device 'cpu'"),
    (lambda x: comm.scatter(x, (0, 1), streams=[None, torch.cuda.Stream(0)]),
     r"the stream at index 1 \(was 0\) to match the device supplied at that index \(expected 1\)"),
])  # fmt: skip
def test_scatter_refuses_what_cannot_be(call, text):
    with pytest.raises(RuntimeError, match=text):
        call(torch.randn(6, 4))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("destination", [None, "cuda:1", "cpu"])
def test_gather(dim, destination):
    x, y = torch.randn(2, 2, device="cuda:0"), torch.randn(2, 2, device="cuda:1")
    where = None if destination is None else torch.device(destination)
    joined = comm.gather((x, y), dim, where)
    assert str(joined.device) == (destination or "cuda:0")
    assert torch.equal(joined.cpu(), torch.cat((x.cpu(), y.cpu()), dim))
    out = torch.empty_like(joined)
    assert comm.gather((x, y), dim, out=out) is out
    assert torch.equal(out, joined)


@pytest.mark.parametrize(("tensors", "text"), [
    (lambda: (), "Expected at least one tensor to gather from"),
    (lambda: (torch.ones(2), torch.ones(2)), "tensor at index 0 has device 'cpu'"),
    (lambda: (torch.ones(2, device="cuda:0"), torch.ones(2, 1, device="cuda:1")),
     "same number of dimensions"),
    (lambda: (torch.ones(2, 3, device="cuda:0"), torch.ones(2, 4, device="cuda:1")), "has invalid shape"),
])  # fmt: skip
def test_gather_refuses_what_cannot_be(tensors, text):
    with pytest.raises(RuntimeError, match=text):
        comm.gather(tensors(), 0)


def test_a_dimension_that_is_not_there_is_refused_in_torchs_words():
    x = torch.ones(2, 2, device="cuda")
    for call in (lambda: comm.gather([x, x], 2), lambda: comm.scatter(x, out=[x], dim=-3)):
        with pytest.raises(
            IndexError, match=r"Dimension out of range \(expected to be in range of \[-2, 1\]"
        ):
            call()
    with pytest.raises(IndexError, match="tensor has no dimensions"):
        comm.gather([x.sum(), x.sum()], 0)


def test_coalesced_copies_are_contiguous_and_travel_in_chunks():
    tensors = [
        torch.ones(3, 2, device="cuda:0").t(),
        torch.ones(100, device="cuda:0"),
        torch.ones(5, device="cuda:0"),
    ]
    _, together = comm.broadcast_coalesced(tensors, (0, 1))
    assert all(tensor.is_contiguous() for tensor in together)
    assert len({tensor.untyped_storage().data_ptr() for tensor in together}) == 1
    for size in (400, 800):
        _, apart = comm.broadcast_coalesced(tensors, (0, 1), buffer_size=size)
        # The second, of 400 bytes, which PyTorch counts twice, fills a chunk with the first; the third begins another.
        storages = [tensor.untyped_storage().data_ptr() for tensor in apart]
        assert storages[0] == storages[1] != storages[2]
    # Of small ones it is their sum that fills a chunk: the third does, with the two before it.
    _, small = comm.broadcast_coalesced([torch.ones(25, device="cuda:0")] * 4, (0, 1), buffer_size=350)
    first, *others = (tensor.untyped_storage().data_ptr() for tensor in small)
    assert [other == first for other in others] == [True, True, False]
    _, exact = comm.broadcast_coalesced([torch.ones(25, device="cuda:0")] * 2, (0, 1), buffer_size=200)
    assert exact[0].untyped_storage().data_ptr() != exact[1].untyped_storage().data_ptr()


def test_what_is_gathered_has_the_memory_format_that_torch_suggests():
    from torch._prims_common import suggest_memory_format

    formats = {
        3: (torch.contiguous_format,),
        4: (torch.contiguous_format, torch.channels_last),
        5: (torch.contiguous_format, torch.channels_last_3d),
    }
    for dims, kinds in formats.items():
        for shape in itertools.product((1, 2, 3), repeat=dims):
            for kind in kinds:
                x = torch.empty(shape, device="cuda:0").contiguous(memory_format=kind)
                for tensor in (x, x.transpose(0, 1), x[:, :1], x.expand(shape)):
                    suggested = suggest_memory_format(tensor)
                    gathered = comm.gather([tensor, tensor.to("cuda:1")])
                    assert gathered.is_contiguous(memory_format=suggested), (shape, kind, tensor.stride())


def test_what_is_gathered_has_the_type_of_the_first():
    halves, doubles = torch.ones(2, 3, device="cuda:0").half(), torch.ones(1, 3, device="cuda:1").double()
    assert comm.gather([halves, doubles]).dtype is torch.float16
    assert comm.gather([doubles, halves], destination="cpu").dtype is torch.float64
