"""What ranks find in torch that is each one's own."""

import importlib
import sys

import pytest
import torch
import torch.distributed as dist

from labkit_ranks.threads.world import World


def test_a_module_that_a_rank_imports_late_does_not_keep_its_group():
    name = "torch.distributed.nn.functional"
    kept = sys.modules.pop(name, None)

    def work(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank.local)
        module = importlib.import_module(name)
        x = torch.tensor([float(rank.number)], device="cuda")
        value = module.all_reduce(x).item()
        assert dist.group.WORLD is not None
        dist.destroy_process_group()
        return value

    try:
        with World(2) as world:
            assert world.run(work) == [1.0, 1.0]
    finally:
        sys.modules.update({name: kept} if kept is not None else {})


def test_objects_are_sent_while_everything_is_written_down(caplog):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: a number for the bytes of each, by what only a build with NCCL has."""

    def work(rank):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank.local)
        found = [None, None]
        dist.all_gather_object(found, {"rank": rank.number})
        return [each["rank"] for each in found]

    with World(2) as world:
        assert world.run(work) == [[0, 1]] * 2
    assert "hash value" in caplog.text


def test_gloo_takes_seconds_for_a_timeout():
    def work(rank):
        options = dist.ProcessGroupGloo._Options()
        assert options._timeout == dist.default_pg_timeout  # kDefaultTimeout of c10d/Backend.hpp
        options._timeout = 5.0
        group = dist.ProcessGroupGloo(dist.FileStore("seconds"), rank.number, 2, options)
        x = torch.ones(1)
        group.allreduce([x]).wait()
        return x.item(), group.timeout.total_seconds()

    with World(2) as world:
        assert world.run(work) == [(2, 5)] * 2


def test_a_group_that_a_script_makes_itself_is_what_it_asks_for(on_ranks):
    """Not what the group before it was: the default one, of NCCL, and one of a single rank."""

    def work(rank):
        dist.new_group([0])
        group = dist.ProcessGroupGloo(dist.FileStore("own"), rank.number, 2)
        x = torch.ones(1)
        group.allreduce([x]).wait()
        return x.item(), group.ranks

    assert on_ranks(work) == [(2, (0, 1))] * 2


def test_tensors_of_the_host_are_refused_over_nccl_by_whatever_name(on_ranks):
    def work(rank):
        x, y = torch.ones(2), torch.ones(4)
        for collective in (
            lambda: dist.reduce_scatter_tensor(x, y),
            lambda: dist.all_gather_into_tensor(y, x),
            lambda: dist.all_reduce_coalesced([x]),
        ):
            with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
                collective()

    on_ranks(work)


def test_float8_is_summed_and_complex_numbers_have_a_mean(on_ranks):
    def work(rank):
        x = torch.full((2,), rank.number + 1.0, device="cuda").to(torch.float8_e4m3fn)
        dist.all_reduce(x)
        z = torch.tensor([complex(rank.number, 2)], device="cuda")
        dist.all_reduce(z, op=dist.ReduceOp.AVG)
        return x.float().tolist(), z.tolist()

    assert on_ranks(work) == [([3, 3], [0.5 + 2j])] * 2


def test_the_future_of_an_all_gather_has_one_tensor_as_nccls_has(on_ranks):
    """Hooks of DDP that quantize take the pieces from it by index (ddp_comm_hooks/quantization_hooks.py)."""

    def work(rank):
        x = torch.tensor([rank.number, 5.0], device="cuda")
        out = [torch.empty_like(x) for _ in range(2)]
        found = dist.all_gather(out, x, async_op=True).get_future().wait()
        y, there = x.cpu(), [torch.empty_like(x.cpu()) for _ in range(2)]
        pieces = (
            dist.all_gather(there, y, group=dist.new_group(backend="gloo"), async_op=True).get_future().wait()
        )
        return found[0][:, 0].tolist(), [piece.tolist() for piece in pieces]

    assert on_ranks(work) == [([0, 1], [[0, 5], [1, 5]])] * 2


def test_hooks_of_ddp_that_are_built_in(on_ranks):
    def work(rank):
        alone = [dist.new_group([number]) for number in range(2)][rank.number]
        found = []
        for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
            for group in (None, alone):
                layer = torch.nn.Linear(2, 1, bias=False).cuda()
                model = torch.nn.parallel.DistributedDataParallel(layer, process_group=group)
                model._register_builtin_comm_hook(kind)
                model(torch.full((1, 2), 1 / 3 + rank.number, device="cuda")).sum().backward()
                found.append(layer.weight.grad[0, 0].item())
        return found

    def half(value):
        return torch.tensor(value).half().item()

    for number, found in enumerate(on_ranks(work)):
        mine = torch.tensor(1 / 3 + number).item()
        halves = half(half(1 / 3) / 2 + half(half(4 / 3) / 2))
        assert found == [pytest.approx(5 / 6), mine, halves, half(mine)]


@pytest.mark.parametrize("poll", ["add", "check", "num_keys"])
def test_a_rank_that_looks_into_the_store_again_and_again_lets_others_have_their_turns(poll):
    def work(rank):
        store = dist.FileStore("polled")
        if rank.number:
            store.set("key", "1")
            return True
        look = {
            "add": lambda: store.add("key", 0),
            "check": lambda: store.check(["key"]),
            "num_keys": store.num_keys,
        }
        return any(look[poll]() for _ in range(9))

    with World(2) as world:
        assert world.run(work) == [True, True]


def test_synchronised_batch_norm_of_nothing(on_ranks):
    def work(rank):
        layer = torch.nn.SyncBatchNorm(2).cuda()
        x = torch.empty(0, 2, 3, 3, device="cuda", requires_grad=True)
        found = layer(x)
        found.sum().backward()
        return found.shape

    assert on_ranks(work) == [(0, 2, 3, 3)] * 2
