"""What NCCL and gloo refuse in one rank's arguments: gloo's words against gloo itself, NCCL's as its source says."""

import re
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import DistBackendError, ReduceOp

import labkit
from labkit_ranks.calls.call import CollectiveCall as Call
from labkit_ranks.calls.checks import check_call
from labkit_ranks.threads.world import RanksFailed, World
from simgpu.state.placement import gpu_of

GROUP = SimpleNamespace(bound_device_id=None, destroyed=False)


@pytest.fixture
def gpus():
    with labkit.simulate(2):
        yield


def checked(call: Call, *, backend="nccl", members=2, at=0, device="cuda:0", group=GROUP):
    """What is raised for the call, as (type, text); None if nothing is."""
    call.backend, call.at, call.ranks, call.device = backend, at, tuple(range(members)), device
    try:
        check_call(call, group)
    except Exception as error:
        return type(error), str(error)
    return None


X = torch.ones(4)
COLUMN = torch.ones(4, 4)[:, 1]
SHORT = X.short()
COMPLEX = X.to(torch.complex64)


def options(kind, **fields):
    made = getattr(c10d, kind)()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def reduction(op):
    return options("AllreduceOptions", reduceOp=op)


# Each: what gloo is asked for, and the call that stands for it. A group of one rank refuses before it would wait.
PREMUL = dist._make_nccl_premul_sum(2.0)
GLOO = {
    "sum": (lambda g: g.allreduce([X.clone()], reduction(ReduceOp.SUM)), Call("all_reduce", [X], [X], op="SUM")),
    "a column": (lambda g: g.allreduce([COLUMN.clone()], reduction(ReduceOp.SUM)),
        Call("all_reduce", [COLUMN], [], op="SUM")),
    "no tensor": (lambda g: g.allreduce([], reduction(ReduceOp.SUM)), Call("all_reduce", [], [], op="SUM")),
    "int16": (lambda g: g.allreduce([SHORT], reduction(ReduceOp.SUM)), Call("all_reduce", [SHORT], [], op="SUM")),
    "premul": (lambda g: g.allreduce([X], reduction(PREMUL)), Call("all_reduce", [X], [], op="PREMUL_SUM")),
    "band": (lambda g: g.allreduce([X], reduction(ReduceOp.BAND)), Call("all_reduce", [X], [], op="BAND")),
    "band of bools": (lambda g: g.allreduce([X.bool()], reduction(ReduceOp.BAND)),
        Call("all_reduce", [X.bool()], [], op="BAND")),
    "complex": (lambda g: g.allreduce([COMPLEX.clone()], reduction(ReduceOp.SUM)),
        Call("all_reduce", [COMPLEX], [], op="SUM")),
    "max of complex": (lambda g: g.allreduce([COMPLEX], reduction(ReduceOp.MAX)),
        Call("all_reduce", [COMPLEX], [], op="MAX")),
    "complex scattered": (lambda g: g.reduce_scatter([COMPLEX], [[COMPLEX]], options("ReduceScatterOptions")),
        Call("reduce_scatter", [COMPLEX], [COMPLEX], op="SUM")),
    "sparse": (lambda g: g.allreduce([X.to_sparse()], reduction(ReduceOp.MAX)),
        Call("all_reduce", [X.to_sparse()], [], op="MAX")),
    "sparse sum": (lambda g: g.allreduce([X.to_sparse()], reduction(ReduceOp.SUM)),
        Call("all_reduce", [X.to_sparse()], [], op="SUM")),
    "broadcast": (lambda g: g.broadcast([X], options("BroadcastOptions", rootRank=3)),
        Call("broadcast", [], [X], root=3)),
    "broadcast sparse": (lambda g: g.broadcast([X.to_sparse()], options("BroadcastOptions")),
        Call("broadcast", [], [X.to_sparse()], root=0)),
    "broadcast int16": (lambda g: g.broadcast([SHORT], options("BroadcastOptions")),
        Call("broadcast", [], [SHORT], root=0)),
    "reduce": (lambda g: g.reduce([X], options("ReduceOptions", rootRank=-1)),
        Call("reduce", [X], [X], op="SUM", root=-1)),
    "reduce sparse": (lambda g: g.reduce([X.to_sparse()], options("ReduceOptions", rootRank=0)),
        Call("reduce", [X.to_sparse()], [X], op="SUM", root=0)),
    "reduce band": (lambda g: g.reduce([X], options("ReduceOptions", rootRank=0, reduceOp=ReduceOp.BAND)),
        Call("reduce", [X], [X], op="BAND", root=0)),
    "all_gather, two": (lambda g: g.allgather([[X, X]], [X]), Call("all_gather", [X], [X, X])),
    "all_gather, types": (lambda g: g.allgather([[X.double()]], [X]), Call("all_gather", [X], [X.double()])),
    "all_gather, sizes": (lambda g: g.allgather([[torch.ones(5)]], [X]), Call("all_gather", [X], [torch.ones(5)])),
    "all_gather, complex": (lambda g: g.allgather([[COMPLEX]], [COMPLEX]), Call("all_gather", [COMPLEX], [COMPLEX])),
    "all_gather_single": (lambda g: g._allgather_base(torch.ones(8), X, options("AllgatherOptions")),
        Call("all_gather_single", [X], [torch.ones(8)])),
    "all_gather_single, types": (lambda g: g._allgather_base(X.double(), X, options("AllgatherOptions")),
        Call("all_gather_single", [X], [X.double()])),
    "all_gather_single, int16": (lambda g: g._allgather_base(SHORT.clone(), SHORT, options("AllgatherOptions")),
        Call("all_gather_single", [SHORT], [SHORT])),
    "gather, two": (lambda g: g.gather([[X, X]], [X], options("GatherOptions", rootRank=0)),
        Call("gather", [X], [X, X], root=0)),
    "gather, types": (lambda g: g.gather([[X.double()]], [X], options("GatherOptions", rootRank=0)),
        Call("gather", [X], [X.double()], root=0)),
    "gather, root": (lambda g: g.gather([[X]], [X], options("GatherOptions", rootRank=5)),
        Call("gather", [X], [X], root=5)),
    "scatter, two": (lambda g: g.scatter([X], [[X, X]], options("ScatterOptions", rootRank=0)),
        Call("scatter", [X, X], [X], root=0)),
    "scatter, sizes": (lambda g: g.scatter([X], [[torch.ones(5)]], options("ScatterOptions", rootRank=0)),
        Call("scatter", [torch.ones(5)], [X], root=0)),
    "reduce_scatter, two": (lambda g: g.reduce_scatter([X], [[X, X]], options("ReduceScatterOptions")),
        Call("reduce_scatter", [X, X], [X], op="SUM")),
    "reduce_scatter, types": (lambda g: g.reduce_scatter([X], [[X.double()]], options("ReduceScatterOptions")),
        Call("reduce_scatter", [X.double()], [X], op="SUM")),
    "reduce_scatter_single, types":
        (lambda g: g._reduce_scatter_base(X.clone(), X.double(), options("ReduceScatterOptions")),
        Call("reduce_scatter_single", [X.double()], [X], op="SUM")),
    "reduce_scatter_single, size":
        (lambda g: g._reduce_scatter_base(X.clone(), torch.ones(5), options("ReduceScatterOptions")),
        Call("reduce_scatter_single", [torch.ones(5)], [X], op="SUM")),
    "reduce_scatter_single, int16":
        (lambda g: g._reduce_scatter_base(SHORT.clone(), SHORT, options("ReduceScatterOptions")),
        Call("reduce_scatter_single", [SHORT], [SHORT], op="SUM")),
    "all_to_all, inputs": (lambda g: g.alltoall([X.clone()], [X, X], options("AllToAllOptions")),
        Call("all_to_all", [X, X], [X])),
    "all_to_all, outputs": (lambda g: g.alltoall([X.clone(), X.clone()], [X], options("AllToAllOptions")),
        Call("all_to_all", [X], [X, X])),
    "all_to_all, int16": (lambda g: g.alltoall([SHORT.clone()], [SHORT], options("AllToAllOptions")),
        Call("all_to_all", [SHORT], [SHORT])),
    "splits, sum": (lambda g: g.alltoall_base(X, X, [2], [4], options("AllToAllOptions")),
        Call("all_to_all_single", [X], [X], splits=([4], [2]))),
    "splits, number": (lambda g: g.alltoall_base(X, X, [2, 2], [4], options("AllToAllOptions")),
        Call("all_to_all_single", [X], [X], splits=([4], [2, 2]))),
    "all_to_all column": (lambda g: g.alltoall_base(X, COLUMN, [], [], options("AllToAllOptions")),
        Call("all_to_all_single", [COLUMN], [X])),
    "send two": (lambda g: g.send([X, X], 0, 0), Call("send", [X, X], [], root=0)),
    "send column": (lambda g: g.send([COLUMN], 0, 0), Call("send", [COLUMN], [], root=0)),
    "tag": (lambda g: g.recv([X], 0, -1), Call("recv", [], [X], root=0, tag=-1)),
}  # fmt: skip


@pytest.mark.parametrize("name", GLOO)
def test_gloo_in_its_own_words(gpus, name):
    ask, call = GLOO[name]
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    try:
        ask(group).wait()
        said = None
    except Exception as error:  # before what was checked stands by whom, when, and in which line of C++
        said = type(error), re.sub(r"^(\[rank\d+\]:)?\[F\d+ .*?\] |\n$", "", str(error))
    assert checked(call, backend="gloo", members=1, device="cpu") == said


def ones(*shape, gpu=0, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device=f"cuda:{gpu}")


NCCL = {
    "on the host": (lambda: Call("all_gather", [torch.ones(2)], [ones(2), ones(2)]),
        ValueError, "Tensors must be CUDA and dense"),
    "a column": (lambda: Call("all_reduce", [ones(4, 4)[:, 1]], [], op="SUM"),
        ValueError, "Tensors must be contiguous"),
    "int16": (lambda: Call("broadcast", [], [ones(2, dtype=torch.int16)], root=0), TypeError,
              "Input tensor data type is not supported for NCCL process group: Short"),
    "band": (lambda: Call("all_reduce", [ones(2)], [], op="BAND"), ValueError, "Cannot use ReduceOp.BAND with NCCL"),
    "mean of bools": (lambda: Call("all_reduce", [ones(2, dtype=torch.bool)], [], op="AVG"), TypeError,
                      "Cannot use ReduceOp.AVG with boolean inputs"),
    "premul of ints": (lambda: Call("all_reduce", [ones(2, dtype=torch.int64)], [], op="PREMUL_SUM"), TypeError,
                       "PreMulSum Data type must be half, float, bfloat16 or double"),
    "max of complex": (lambda: Call("reduce", [ones(2, dtype=torch.complex64)], [], op="MAX", root=0), RuntimeError,
                       f"reduce does not support{chr(int(ReduceOp.RedOpType.MAX))}on complex tensors"),
    "complex gathered": (lambda: Call("all_gather", [ones(2, dtype=torch.complex64)], [ones(2)] * 2), TypeError,
                         "Input tensor data type is not supported for NCCL process group: ComplexFloat"),
    "gather, one list short": (lambda: Call("gather", [ones(2)], [ones(2)], root=0), ValueError,
        "ProcessGroupNCCL::gather: Incorrect output list size 1. Output list size should be 2, same as size of the "
        "process group."),
    "gather, sizes": (lambda: Call("gather", [ones(2)], [ones(2), ones(3)], root=0), ValueError,
                      "ProcessGroupNCCL::gather: invalid tensor size at index 1 (expected (2), got (3))"),
    "scatter, root":
        (lambda: Call("scatter", [], [ones(2)], root=7), ValueError, "ProcessGroupNCCL::scatter: invalid root rank: 7"),
    "all_gather_single, type":
        (lambda: Call("all_gather_single", [ones(2)], [ones(4, dtype=torch.float64)]), TypeError,
                                "output tensor must have the same type as input tensor"),
    "all_gather_single, size": (lambda: Call("all_gather_single", [ones(2)], [ones(5)]), ValueError,
                                "output tensor size must be equal to world_size times input tensor size"),
    "reduce_scatter_single, type":
        (lambda: Call("reduce_scatter_single", [ones(4, dtype=torch.float64)], [ones(2)], op="SUM"), TypeError,
                                    "input tensor must be the same type as the output tensor."),
    "reduce_scatter_single, size": (lambda: Call("reduce_scatter_single", [ones(5)], [ones(2)], op="SUM"), ValueError,
                                    "input tensor must be the same size as output size times world size"),
    "all_gather, sizes": (lambda: Call("all_gather", [ones(2)], [ones(3), ones(4)]), ValueError,
                          "Tensor input and output of _broadcast_oop must have the same number of elements "),
    "odd rows": (lambda: Call("all_to_all_single", [ones(3)], [ones(3)]), RuntimeError,
                 "Tensor's dim 0 does not divide equally across group size"),
    "splits": (lambda: Call("all_to_all_single", [ones(4)], [ones(4)], splits=([1, 2], [2, 2])), RuntimeError,
               "Split sizes doesn't match total dim 0 size"),
    "two GPUs": (lambda: Call("all_to_all", [ones(2), ones(2, gpu=1)], [ones(2)] * 2),
        RuntimeError, "Tensors must be on the same device"),
    "coalesced, types": (lambda: Call("all_reduce", [ones(2), ones(2, dtype=torch.int64)], [], op="SUM"), TypeError,
                         "Tensors must have identical type"),
    "sparse": (lambda: Call("all_reduce", [ones(2).to_sparse()], [], op="SUM"), RuntimeError,
               "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead."),
    "coalesced, none": (lambda: Call("all_reduce", [], [], op="SUM"), ValueError, "Tensor list must be nonempty"),
    "coalesced, sparse": (lambda: Call("all_reduce", [ones(2), ones(2).to_sparse()], [], op="SUM"), ValueError,
                          "Tensors must be CUDA and dense"),
    "coalesced, a column": (lambda: Call("all_reduce", [ones(2), ones(4, 4)[:, 1]], [], op="SUM"), ValueError,
                            "Tensors must be non-overlapping and dense"),
    "coalesced, two GPUs": (lambda: Call("all_reduce", [ones(2), ones(2, gpu=1)], [], op="SUM"), ValueError,
                            "Expected list of tensors on the same device"),
    "gathered on the host": (lambda: Call("all_gather", [ones(2)], [ones(2), torch.ones(2)]), ValueError,
                             "Tensors must be CUDA and dense"),
    "float8": (lambda: Call("all_reduce", [ones(2).to(torch.float8_e4m3fnuz)], [], op="SUM"), RuntimeError,
               "Unsupported Float8 type for NCCL reduction"),
    "reduce_scatter, sizes": (lambda: Call("reduce_scatter", [ones(2), ones(3)], [ones(4)], op="SUM"), ValueError,
                              "Tensor input and output of _reduce_oop must have the same number of elements "),
    "from anybody": (lambda: Call("recv", [], [ones(2)], root=None), NotImplementedError,
                     "ProcessGroupNCCL does not support recvAnysource"),
}  # fmt: skip


@pytest.mark.parametrize("name", NCCL)
def test_nccl_in_its_own_words(gpus, name):
    make, kind, text = NCCL[name]
    assert checked(make()) == (kind, text)


@pytest.mark.parametrize("make", [
    lambda: Call("all_reduce", [ones(4)], [], op="AVG"),
    lambda: Call("all_reduce", [ones(2, dtype=torch.complex64)], [], op="SUM"),
    lambda: Call("all_reduce", [ones(2, 3, 4, 5).to(memory_format=torch.channels_last)], [], op="SUM"),
    lambda: Call("all_reduce", [ones(2), ones(3, 3)], [], op="MAX"),
    lambda: Call("all_gather", [ones(2)], [ones(2), ones(3)]),  # pieces of different sizes
    lambda: Call("all_to_all_single", [ones(4, 2)], [ones(3, 2)], splits=([1, 3], [1, 2])),
    lambda: Call("send", [ones(4, 4)[:, 1]], [], root=1), lambda: Call("barrier", [], []),
])  # fmt: skip
def test_what_nccl_takes_passes(gpus, make):
    assert checked(make()) is None


@pytest.mark.parametrize(("make", "said"), [
    (lambda: Call("all_gather", [ones(2)], [ones(2)]), "1 tensors for the 2 ranks"),
    (lambda: Call("all_gather", [ones(2)], [ones(3), ones(3)]),
     r"each output has shape \[3\], the input \[2\]"),
    (lambda: Call("reduce_scatter", [ones(3), ones(3)], [ones(2)], op="SUM"),
     r"each input has shape \[3\], the output \[2\]"),
    (lambda: Call("all_gather", [ones(2)], [ones(2, dtype=torch.int64)] * 2),
     "float32 and int64 in one call"),
    (lambda: Call("all_to_all_single", [x := ones(4)], [x]), "shares memory with an input"),
    (lambda: Call("all_to_all_single", [ones(4)], [ones(2)]), r"the output \[2\]"),
])  # fmt: skip
def test_what_nccl_would_do_without_a_word_is_said(gpus, make, said):
    kind, text = checked(make())
    assert kind is ValueError
    assert re.search(said, text)


def test_a_device_that_has_no_backend():
    call = Call("all_reduce", [X], [], op="SUM")
    text = "No backend type associated with device type cuda"
    assert checked(call, backend="", device="cuda:1") == (RuntimeError, text)
    kind, text = checked(call, backend="", device="cpu")
    assert kind is RuntimeError
    assert text.startswith("No backend type associated with device type cpu\nall_reduce at ")
    assert "`.cuda()` first" in text


def test_a_group_bound_to_another_gpu(gpus):
    group = SimpleNamespace(bound_device_id=torch.device("cuda", 1), destroyed=False)
    call = Call("all_reduce", [ones(2)], [], op="SUM")
    assert str(gpu_of(call.inputs[0]).device) == "cuda:0"
    assert checked(call, group=group) == (
        DistBackendError, "Attempt to perform collective on tensor not on device passed to init_process_group",
    )  # fmt: skip


def test_a_group_that_was_shut_down(gpus):
    group = SimpleNamespace(bound_device_id=None, destroyed=True)
    kind, text = checked(Call("all_reduce", [ones(2)], [], op="SUM"), at=1, group=group)
    assert (kind, text) == (DistBackendError, "NCCL communicator was aborted on rank 1. ")


def test_a_root_that_is_none(gpus):
    kind, text = checked(Call("broadcast", [], [ones(2)], root=2))
    assert kind is DistBackendError
    assert text.endswith("Last error:\nBroadcast : invalid root 2 (root should be in the 0..2 range)")


@pytest.mark.parametrize(("options", "said"), [
    ({"rank": 5, "world_size": 2}, "Invalid rank requested : 5/2\nA group of 2 has the ranks 0 to 1"),
    ({"world_size": 3}, "a group of 3 ranks, but only 2 run"),
])  # fmt: skip
def test_a_group_that_cannot_be(options, said):
    def work(rank):
        dist.init_process_group(
            "nccl", init_method="tcp://127.0.0.1:29500", **{"rank": rank.number, **options}
        )

    with World(2) as world, pytest.raises(RanksFailed) as failed:
        world.run(work)
    assert said in str(failed.value.error)
