"""What ranks find in torch: groups, hooks, edges of graphs, DTensors, profilers and compilers, on each one's GPU."""

import importlib
import json
import os
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

import labkit
from labkit_ranks.calls import checks
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
        numbers = [each["rank"] for each in found]
        dist.all_gather_object(
            found, torch.ones(1, device="cuda")
        )  # comes out there, as torch.load would put it
        dist.broadcast_object_list(numbers, src=1)
        return numbers, [str(each.device) for each in found]

    with World(2) as world:
        assert world.run(work) == [([0, 1], ["cuda:0", "cuda:1"])] * 2
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


def test_gradients_by_edges_are_where_their_parameters_are():
    """As pipelining's schedules that take the weights' gradients by themselves ask for them."""

    def work(rank):
        torch.cuda.set_device(rank.number)
        layer = torch.nn.Linear(2, 2, bias=False).cuda()
        loss = layer(torch.ones(1, 2, device="cuda")).sum()
        (grad,) = torch.autograd.grad((loss,), (get_gradient_edge(layer.weight),))
        layer.weight.grad = grad
        y = layer(torch.ones(1, 2, device="cuda"))
        (again,) = torch.autograd.grad((get_gradient_edge(y),), (layer.weight,), (torch.ones_like(y),))
        assert again.device == grad.device
        return str(grad.device)

    with World(2) as world:
        assert world.run(work) == ["cuda:0", "cuda:1"]


def test_dtensors_are_compared_by_all_ranks(on_ranks):
    def work(rank):
        mesh = init_device_mesh("cuda", (2,))
        x = distribute_tensor(torch.arange(4.0, device="cuda"), mesh, [Shard(0)])
        y = distribute_tensor(torch.tensor([0.0, 1, 2, 4], device="cuda"), mesh, [Shard(0)])
        return torch.equal(x, x), torch.equal(x, y)

    assert on_ranks(work) == [(True, False)] * 2


def test_what_a_functional_collective_returns_can_be_sent_on_and_a_dtensor_cannot(on_ranks):
    """Both are wrappers without memory of their own, which a copy would read past."""

    def work(rank):
        mesh = init_device_mesh("cuda", (2,))
        x = all_reduce(torch.ones(3, device="cuda"), "sum", dist.group.WORLD)
        if rank.number == 0:
            dist.send(x, 1)
            found = x
        else:
            found = torch.zeros_like(x.wait())  # a result that is never waited for makes C++ warn at the end
            dist.recv(found, 0)
        with pytest.raises(NotImplementedError, match="does not have a sharding strategy"):
            dist.broadcast(distribute_tensor(torch.ones(2, device="cuda"), mesh, [Shard(0)]), 0)
        return found.tolist()

    assert on_ranks(work) == [[2, 2, 2]] * 2


def test_attention_of_dtensors_that_are_sharded_by_heads(on_ranks):
    """Where no kernel of CUDA's takes a call, PyTorch's own mask is no DTensor, as on real GPUs (torchtitan #3340)."""

    def work(rank):
        mesh = init_device_mesh("cuda", (2,))
        torch.manual_seed(0)
        q = torch.rand(1, 4, 3, 4, device="cuda", requires_grad=True)
        whole = scaled_dot_product_attention(q, q, q, is_causal=True)
        sharded = distribute_tensor(q.detach(), mesh, [Shard(1)]).requires_grad_()
        found = scaled_dot_product_attention(sharded, sharded, sharded, is_causal=True)
        narrow = distribute_tensor(q[..., :2].detach(), mesh, [Shard(1)])
        scaled_dot_product_attention(narrow, narrow, narrow)
        with pytest.raises(RuntimeError, match=r"aten.add.Tensor got mixed torch.Tensor and DTensor"):
            scaled_dot_product_attention(narrow, narrow, narrow, is_causal=True)
        whole.sum().backward()
        found.sum().backward()
        return torch.allclose(found.full_tensor(), whole), torch.allclose(sharded.grad.full_tensor(), q.grad)

    assert on_ranks(work) == [(True, True)] * 2


def test_a_collective_is_no_change_that_autograd_counts(on_ranks):
    """NCCL writes into memory: what backward has saved is not taken for changed, whatever comes of it."""

    def work(rank):
        x = torch.ones(2, device="cuda", requires_grad=True)
        y = torch.relu(x)
        dist.all_reduce(y)
        y.sum().backward()
        return x.grad.tolist(), y.tolist()

    assert on_ranks(work) == [([1, 1], [2, 2])] * 2


def test_a_dtensor_that_is_copied_to_the_host_is_there(on_ranks):
    def work(rank):
        mesh = init_device_mesh("cuda", (2,))
        x = distribute_tensor(torch.arange(4.0, device="cuda"), mesh, [Shard(0)])
        copies = [x.cpu(), x.to("cpu"), x.detach().cpu().clone()]
        assert x.device.type == "cuda"
        return [(str(copy.device), str(copy.to_local().device), copy.to_local().tolist()) for copy in copies]

    found = on_ranks(work)
    assert found == [[("cpu", "cpu", values)] * 3 for values in ([0, 1], [2, 3])]


def test_a_message_to_oneself(on_ranks):
    def work(rank):
        sent, got = torch.full((2,), rank.number + 1.0, device="cuda"), torch.zeros(2, device="cuda")
        ops = [dist.P2POp(dist.irecv, got, rank.number), dist.P2POp(dist.isend, sent, rank.number)]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        return got.tolist()

    assert on_ranks(work) == [[1, 1], [2, 2]]


def test_ddp_of_a_model_on_another_gpu_than_the_current_one():
    def work(rank):
        dist.init_process_group("nccl")
        torch.manual_seed(rank.number)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to(rank.number)
        model = DistributedDataParallel(model, device_ids=[rank.number])
        for _ in range(2):
            model(torch.ones(2, 2, device=rank.number) * rank.number).sum().backward()
        assert torch.cuda.current_device() == 0
        return model.module[0].weight.tolist(), model.module[0].weight.grad.device.index

    with World(2) as world:
        first, second = world.run(work)
    assert first[0] == second[0]
    assert (first[1], second[1]) == (0, 1)


@pytest.mark.parametrize("how", ["guessed", "bound", "used"])
def test_a_barrier_takes_the_gpu_of_its_rank(how, monkeypatch):
    """torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, guessDeviceId."""
    devices = {}
    monkeypatch.setattr(
        checks, "check_call", lambda call, group: devices.update({(call.kind, call.rank): call.device})
    )

    def work(rank):
        other = torch.device("cuda", (rank.number + 1) % 2)
        dist.init_process_group("nccl", device_id=other if how == "bound" else None)
        if how == "used":
            dist.all_reduce(torch.ones(1, device=other))
        dist.barrier()

    with World(2) as world:
        world.run(work)
    own = [f"cuda:{number}" for number in range(2)]
    assert [devices["barrier", number] for number in range(2)] == (own if how == "guessed" else own[::-1])


def test_a_groups_methods_take_roots_and_reductions_by_themselves():
    """The shorter forms that torch/csrc/distributed/c10d/init.cpp has of each."""

    def work(rank):
        dist.init_process_group("nccl")
        group, device = dist.group.WORLD, torch.device("cuda", rank.number)
        x = torch.full((2,), rank.number + 1.0, device=device)
        group.allreduce(x, dist.ReduceOp.MAX).wait()
        y = torch.full((1,), rank.number + 1.0, device=device)
        group.broadcast(y, root=1).wait()
        out = [torch.zeros(1, device=device) for _ in range(2)]
        group.allgather(out, torch.full((1,), float(rank.number), device=device)).wait()
        mine = torch.zeros(1, device=device)
        group.scatter(mine, out if rank.number == 0 else [], 0).wait()
        group.reduce_scatter(y, [torch.ones(1, device=device)] * 2, dist.ReduceOp.SUM).wait()
        return x.tolist(), torch.cat(out).tolist(), mine.item(), y.item()

    with World(2) as world:
        assert world.run(work) == [([2, 2], [0, 1], 0, 2), ([2, 2], [0, 1], 1, 2)]


def test_fsdp2_from_the_meta_device():
    def work(rank):
        torch.cuda.set_device(rank.number)
        dist.init_process_group("nccl")
        with torch.device("meta"):
            model = torch.nn.Linear(4, 4, bias=False)
        fully_shard(model)
        before = model.weight.device.type, torch.cuda.memory_allocated()
        model.to_empty(device="cuda")
        with torch.no_grad():
            model.weight.to_local().fill_(1)
        model(torch.ones(1, 4, device="cuda")).sum().backward()
        return before, str(model.weight.device), model.weight.grad.to_local().tolist()

    with World(2) as world:
        found = world.run(work)
    assert [each[0] for each in found] == [("meta", 0)] * 2
    assert [each[1] for each in found] == ["cuda:0", "cuda:1"]
    assert found[0][2] == [[1.0] * 4] * 2


def test_swapped_parameters_get_their_gradients():
    """torch.utils.swap_tensors refuses whatever has weak references: the GPU's own are let go for it."""
    import labkit

    with labkit.simulate(1):
        first, second = (torch.nn.Parameter(torch.full((2,), x, device="cuda")) for x in (1.0, 2.0))
        torch.utils.swap_tensors(first, second)
        (first * 3).sum().backward()
        assert torch.cuda.memory_allocated() == 3 * 512
        assert (first.tolist(), first.grad.tolist()) == ([2, 2], [3, 3])


def test_ranks_that_profile_at_the_same_time(tmp_path, on_ranks):
    def work(rank):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with profile() as recorded:
                x = torch.ones(4, device="cuda") * 2
                dist.all_reduce(x)
        path = tmp_path / f"{rank.number}.json"
        recorded.export_chrome_trace(str(path))
        events = {event.key for event in recorded.key_averages()}
        texts = [str(each.message) for each in told if "profiles nothing" in str(each.message)]
        return "aten::mul" in events, texts, len(json.loads(path.read_text())["traceEvents"]) > 0

    found = on_ranks(work, 3)
    assert [each[0] for each in found] == [True, False, False]
    assert [each[2] for each in found] == [True, False, False]
    assert found[0][1] == []
    assert "rank 2 profiles nothing: rank 0 has PyTorch's profiler" in found[2][1][0]


def test_ranks_that_profile_one_after_the_other():
    def work(rank):
        with profile() as recorded:
            torch.ones(4) * 2
        return "aten::mul" in {event.key for event in recorded.key_averages()}

    with World(2) as world:
        assert world.run(work) == [True, True]


def gradients(rank, compiled):
    torch.cuda.set_device(rank.number)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).cuda()
    model, loss = module, torch.square
    if compiled:
        model = torch.compile(module, mode="max-autotune")
        assert sorted(model.state_dict()) == [f"_orig_mod.{name}" for name in sorted(module.state_dict())]
        loss = torch.compile(fullgraph=True)(loss)
        module[1].compile()
        assert torch.compile(loss, disable=True) is loss
    model = DistributedDataParallel(model, device_ids=[rank.number])
    loss(model(torch.randn(5, 3, device="cuda") + rank.number)).sum().backward()
    return [parameter.grad.cpu() for parameter in module.parameters()]


def test_what_is_compiled_runs_as_it_is_and_says_so_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with World(2) as world:
            world.run(lambda rank: dist.init_process_group("nccl"))
            plain = world.run(lambda rank: gradients(rank, False))
            compiled = world.run(lambda rank: gradients(rank, True))
    for one, other in zip(plain, compiled, strict=True):
        assert all(map(torch.equal, one, other))
    assert len([each for each in told if "runs as it is, not compiled" in str(each.message)]) == 1


def test_a_recorders_own_hooks_bring_no_warning_about_hooks():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with labkit.record(), World(1) as world:
            world.run(lambda rank: torch.compile(nn.Linear(3, 4).cuda())(torch.ones(2, 3, device="cuda")))
    assert [each for each in told if "global hooks" in str(each.message)] == []


def test_mode_and_options_exclude_each_other():
    with World(1) as world, pytest.raises(RuntimeError, match="Either mode or options can be specified"):
        world.run(lambda rank: torch.compile(torch.square, mode="default", options={}))


def test_ddp_by_gloo_is_made_and_tells_its_backend():
    def work(rank):
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        model(torch.full((1, 2), float(rank.number))).sum().backward()
        return (
            model.module.weight.grad.tolist(),
            model._get_ddp_logging_data()["backend_name"],
            dist.get_backend(),
        )

    with World(2) as world:
        assert world.run(work) == [([[0.5, 0.5]], "simulated gloo", "gloo")] * 2


def test_a_mesh_chooses_the_gpu_of_a_rank_that_has_chosen_none():
    def work(rank):
        dist.init_process_group("nccl")
        if rank.number == 0:
            dist.send(torch.ones(1, device="cuda"), 3)  # rank 0 has used its GPU before the others begin
        elif rank.number == 3:
            dist.recv(torch.empty(1, device="cuda:3"), 0)
        before = torch.cuda.is_initialized()
        if rank.number == 2:
            torch.cuda.set_device(1)
        init_device_mesh("cuda", (4,))
        return before, torch.ones(1, device="cuda").device.index

    with World(4) as world:
        assert world.run(work) == [(True, 0), (False, 1), (False, 1), (True, 0)]


def test_without_torchruns_variables_the_mesh_says_that_it_guesses():
    def work(rank):
        dist.init_process_group("nccl")
        del os.environ["LOCAL_RANK"]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            init_device_mesh("cuda", (2,))
        return torch.cuda.current_device(), any("did not set/select" in str(each.message) for each in told)

    with World(2) as world:
        assert world.run(work) == [(0, True), (1, True)]


def test_seeds_wait_for_nothing_and_memory_is_read_as_before_the_first_use():
    def work(rank):
        torch.manual_seed(rank.number)
        torch.cuda.manual_seed_all(7)
        empty = torch.cuda.memory_stats(), torch.cuda.is_initialized()
        x = torch.rand(1, device=f"cuda:{rank.number}")
        return empty, x.item(), torch.cuda.is_initialized()

    with World(2) as world:
        first, second = world.run(work)
    assert first[0] == second[0] == ({}, False)
    assert first[1] == second[1]
    assert first[2]
    assert second[2]


def test_the_caller_of_the_ranks_sees_what_it_saw():
    with World(2) as world:
        world.run(lambda rank: None)
        assert torch.cuda.is_initialized()
        assert torch.cuda.nccl.version() >= (2, 20)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_that_is_forked_has_lost_the_gpus_if_its_rank_has_used_them():
    def work(rank):
        if rank.number == 0:
            torch.cuda.set_device(0)
        if rank.number == 1:
            kept.append(torch.ones(1, device="cuda"))
        child = os.fork()
        if not child:
            try:
                torch.ones(1, device="cuda:1")
            except RuntimeError as error:
                os._exit(7 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 8)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    kept = []
    with World(3) as world:
        assert world.run(work) == [7, 7, 0]


def train(wrap, to_none):
    def run(rank):
        if not dist.is_initialized():
            dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        # Bytes are counted, and gradients looked for, where the weights are on the GPU.
        layers[1].register_forward_hook(lambda *_: torch.cuda.memory_allocated() and None)
        model = wrap(layers)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(torch.ones(4, 8, device="cuda")).square().mean()
            loss.backward()
            grads = {str(p.grad.device) for p in model.parameters() if p.grad is not None}
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
        held = {
            str(value.device)
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        }
        return loss.item(), grads | held | {str(p.device) for p in model.parameters()}

    return run


def by_fsdp2(model):
    return fully_shard(model, offload_policy=CPUOffloadPolicy()) or model


def by_fsdp1(model):
    return FullyShardedDataParallel(
        model, cpu_offload=CPUOffload(offload_params=True), device_id=torch.cuda.current_device()
    )


@pytest.mark.parametrize("to_none", [True, False])
def test_what_is_offloaded_is_on_the_host_and_trains_alike(to_none):
    with World(2) as world:
        whole = world.run(train(lambda model: model.cuda(), to_none))
        for wrap in (by_fsdp1, by_fsdp2):
            found = world.run(train(wrap, to_none))
            for (loss, places), (expected, _) in zip(found, whole, strict=True):
                assert places == {"cpu"}
                assert abs(loss - expected) < 1e-5
