"""How DTensor shards a result is worked out once for all ranks, and is each rank's own all the same."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from labkit_ranks.threads.world import World

N = 4
NAME = "propagate_op_sharding_non_cached"


@pytest.fixture
def worked_out(monkeypatch):
    """How often PyTorch works out each operation's sharding."""
    times, real = Counter(), vars(ShardingPropagator)[NAME]

    def count(propagator, schema):
        times[str(schema.op)] += 1
        return real(propagator, schema)

    monkeypatch.setattr(ShardingPropagator, NAME, count)
    yield times
    assert vars(ShardingPropagator)[NAME] is count  # the ranks are gone, and theirs too


def begin(rank):
    if not dist.is_initialized():
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank.local)
    return init_device_mesh("cuda", (N,))


def sharded(mesh, *shape, of=0):
    values = torch.arange(float(torch.Size(shape).numel()), device="cuda").view(shape)
    return values, distribute_tensor(values, mesh, [Shard(of)])


def test_once_for_all_and_on_each_rank_s_own_mesh(worked_out):
    def work(rank):
        mesh = begin(rank)
        a, x = sharded(mesh, 8, 6)
        b, y = sharded(mesh, 6, 8, of=1)
        product = x.sin() @ y.cos()
        torch.testing.assert_close(product.full_tensor().cpu(), (a.sin() @ b.cos()).cpu())
        return product.device_mesh is mesh, product.redistribute(mesh, [Replicate()]).device_mesh is mesh

    with World(N) as world:
        assert world.run(work) == [(True, True)] * N
    assert [worked_out[f"aten.{name}.default"] for name in ("sin", "cos", "mm")] == [1, 1, 1]


def test_what_depends_on_the_rank_is_worked_out_by_each(worked_out):
    """One row on four ranks: 1, 0, 0, 0; a lookup in a table of which each has a part, with a mask that it keeps."""

    def work(rank):
        mesh = begin(rank)
        a, x = sharded(mesh, 1, 4)
        rows = x.view(1, 2, 2)
        _, table = sharded(mesh, 8, 3)
        numbers = distribute_tensor(torch.tensor([0, 7, 3, 5], device="cuda"), mesh, [Replicate()])
        found = torch.nn.functional.embedding(numbers, table).full_tensor()
        return (
            rows.to_local().shape[0],
            bool((rows.full_tensor() == a.view(1, 2, 2)).all()),
            found[:, 0].tolist(),
        )

    with World(N) as world:
        looked_up = [0.0, 21.0, 9.0, 15.0]
        assert world.run(work) == [(rows, True, looked_up) for rows in (1, 0, 0, 0)]
    assert [worked_out[f"aten.{name}.default"] for name in ("view", "embedding")] == [N, N]


def test_each_has_its_own_default_type(worked_out):
    def work(rank):
        mesh = begin(rank)
        torch.set_default_dtype(torch.float64 if rank.number % 2 else torch.float32)
        whole = DTensor.from_local(torch.ones(2, dtype=torch.int64, device="cuda"), mesh, [Shard(0)])
        result = whole / 2
        return result._spec.tensor_meta.dtype, result.to_local().dtype

    with World(N) as world:
        kinds = torch.float32, torch.float64
        assert world.run(work) == [(kinds[k % 2], kinds[k % 2]) for k in range(N)]
