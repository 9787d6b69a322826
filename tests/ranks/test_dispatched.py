"""Dispatch modes see the collectives of their rank as the operators of torch.ops.c10d that C++ would have called."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

N = 2
c10d = torch.ops.c10d


class Seen(TorchDispatchMode):
    """Notes what it sees of c10d, and whether it is one of ``kept``."""

    def __init__(self, *kept):
        super().__init__()
        self.kept, self.seen = kept, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.seen.append((str(func), func in self.kept, args[: len(func._schema.arguments)]))
        return func(*args, **(kwargs or {}))


def test_every_collective_is_seen_once(joined):
    def work(rank):
        x, all_ = torch.ones(2, device="cuda"), torch.ones(4, device="cuda")
        pieces = list(all_.chunk(2))
        first = rank.number == 0
        with Seen() as mode:
            dist.all_reduce(x)
            dist.all_reduce(x, async_op=True).wait()
            dist.broadcast(x, 1)
            dist.reduce(x, 1)
            dist.all_gather([torch.empty_like(x) for _ in range(2)], x)
            dist.all_gather_single(all_, x)
            dist.gather(x, pieces if first else None)
            dist.scatter(x, pieces if first else None)
            dist.reduce_scatter(x, pieces)
            dist.reduce_scatter_single(x, all_)
            dist.all_to_all([torch.empty_like(x) for _ in range(2)], pieces)
            dist.all_to_all_single(torch.empty_like(all_), all_)
            dist.barrier(device_ids=[rank.number])
            dist.send(x, 1) if first else dist.recv(x, 0)
        return [name.removeprefix("c10d.").removesuffix(".default") for name, _, _ in mode.seen]

    each = (
        "allreduce_ allreduce_ broadcast_ reduce_ allgather_ _allgather_base_ gather_ scatter_ reduce_scatter_ "
        "_reduce_scatter_base_ alltoall_ alltoall_base_ barrier"
    ).split()
    assert joined.run(work) == [[*each, "send"], [*each, "recv_"]]


def test_what_it_sees_is_taken_for_the_operator_and_has_its_arguments(joined):
    def work(rank):
        x = torch.full((2,), rank.number + 1.0, device="cuda")
        outer = Seen(c10d.allreduce_.default)
        with outer, Seen(c10d.broadcast_.default) as inner:
            dist.all_reduce(x, dist.ReduceOp.MAX)
        (_, known, args), (_, unknown, _) = outer.seen[0], inner.seen[0]
        assert (known, unknown, len(outer.seen), len(inner.seen)) == (True, False, 1, 1)
        (tensor,), _, op, indices, *_ = args
        assert tensor is x
        assert (op, indices) == (dist.ReduceOp.MAX, None)
        assert hash(c10d.allreduce_.default) != hash(c10d.broadcast_.default)
        return x.tolist()

    assert joined.run(work) == [[2, 2], [2, 2]]


def test_a_mode_that_answers_itself_keeps_the_ranks_apart(joined):
    class Alone(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace != "c10d":
                return func(*args, **(kwargs or {}))
            work = dist.Work()
            return args[0], work

    def work(rank):
        x = torch.full((1,), rank.number + 1.0, device="cuda")
        with Alone():
            assert type(dist.all_reduce(x, async_op=True)) is dist.Work
        return x.item()

    assert joined.run(work) == [1, 2]


def test_comm_debug_mode_counts_fsdp_and_what_is_distributed(joined):
    def work(rank):
        mesh = dist.device_mesh.init_device_mesh("cuda", (2,))
        with CommDebugMode() as placing:
            distribute_tensor(torch.ones(4, 2, device="cuda"), mesh, [Shard(0)])
        net = torch.nn.Sequential(*(torch.nn.Linear(4, 4, device="cuda") for _ in range(2)))
        for layer in net:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        with CommDebugMode() as training:
            net(torch.ones(2, 4, device="cuda", requires_grad=True)).sum().backward()
        return dict(placing.get_comm_counts()), dict(training.get_comm_counts())

    placed, trained = {c10d.scatter_: 1}, {c10d._allgather_base_: 4, c10d._reduce_scatter_base_: 2}
    assert joined.run(work) == [(placed, trained)] * 2


def test_a_tensor_that_wraps_others_takes_the_collective_to_them(joined):
    def work(rank):
        both = TwoTensor(*(torch.full((2,), number + rank.number, device="cuda") for number in (1.0, 10.0)))
        dist.all_reduce(both)
        received = TwoTensor(torch.zeros(2, device="cuda"), torch.zeros(2, device="cuda"))
        dist.scatter(received, [both, both + 1] if rank.number == 0 else None)
        mesh = dist.device_mesh.init_device_mesh("cuda", (2,))
        sharded = distribute_tensor(torch.ones(2, device="cuda"), mesh, [Replicate()])
        with pytest.raises(NotImplementedError, match=r"c10d\.all_?reduce.*a DTensor holds other tensors"):
            dist.all_reduce(sharded)
        return both.a.tolist(), both.b.tolist(), received.a.tolist(), received.b.tolist()

    summed = [3, 3], [21, 21]
    assert joined.run(work) == [(*summed, *summed), (*summed, [4, 4], [22, 22])]
