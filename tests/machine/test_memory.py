"""Bytes per GPU: counted exactly, limited, and given back."""

import copy
import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn

import labkit
from simgpu.state.gpu import Gpu


def allocated(gpu):
    return torch.cuda.memory_allocated(gpu)


def test_bytes_are_counted_in_cudas_blocks_and_given_back(gpus):
    x = torch.zeros(1, device="cuda:1")
    assert (allocated(0), allocated(1)) == (0, 512)
    y = torch.zeros(1000, device="cuda:1")  # 4000 bytes: 8 blocks of 512
    view = y[10:]
    assert allocated(1) == 512 + 4096
    del y
    assert allocated(1) == 512 + 4096
    del view, x
    assert allocated(1) == 0
    assert torch.cuda.max_memory_allocated(1) >= 512 + 4096
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) == 0


def test_what_is_larger_than_16_kib_is_seen_at_the_peak_and_what_is_small_costs_no_count(monkeypatch):
    counts, recount = [], Gpu.recount
    monkeypatch.setattr(Gpu, "recount", lambda *args: (counts.append(1), recount(*args))[1])
    with labkit.simulate(gpus=1):
        keep = torch.zeros(1, device="cuda")
        torch.zeros(16 * 256 + 1, device="cuda")  # a block more than 16 KiB, and gone again
        assert torch.cuda.max_memory_allocated() == 512 + 16 * 1024 + 512
        torch.cuda.reset_peak_memory_stats()
        counts.clear()
        for _ in range(32):
            torch.zeros(1, device="cuda")  # 32 blocks of 512 bytes: 16 KiB
        assert not counts
        assert keep.is_cuda


def test_a_look_tells_the_peak_since_the_last_one_and_leaves_the_other_peak():
    with labkit.simulate(gpus=1) as machine:
        look, kib = machine.gpus[0].look, 1024
        keep = torch.zeros(256 * 100, device="cuda")
        torch.zeros(256 * 1000, device="cuda")
        live, highest = look()
        assert live == 100 * kib
        assert 0 <= 1100 * kib - highest < 16 * kib
        for size in (300, 500, 200):
            torch.zeros(256 * size, device="cuda")
        _, highest = look()
        assert 0 <= 600 * kib - highest < 16 * kib
        torch.zeros(256 * 400, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        torch.zeros(256 * 50, device="cuda")
        assert 0 <= 150 * kib - torch.cuda.max_memory_allocated() < 16 * kib
        _, highest = look()
        assert 0 <= 500 * kib - highest < 16 * kib
        assert look() == (keep.numel() * 4, 100 * kib)
        torch.zeros(256 * 2000, device="cuda")
        assert 0 <= 2100 * kib - torch.cuda.max_memory_allocated() < 16 * kib


def test_eight_replicas_weigh_eight_models():
    with labkit.simulate(gpus=8):
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).cuda()
        one = allocated(0)
        assert one == 4 * (64 * 64 * 4 + 512)
        replicas = nn.parallel.replicate(model, range(8))
        # They travel as one tensor, and stay one: nothing is rounded up for each.
        assert [allocated(k) for k in range(8)] == [one] + [4 * (64 * 64 * 4 + 64 * 4)] * 7
        del replicas
        gc.collect()
        assert [allocated(k) for k in range(1, 8)] == [0] * 7


def test_a_full_gpu_raises_cudas_error_and_recovers():
    with labkit.simulate(gpus=2, memory=["16 MiB", "1 MiB"]):
        x = torch.zeros(128, 1024, device="cuda:1")  # half of it
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.zeros(256, 1024, device="cuda:1")
        assert str(caught.value).startswith(
            "CUDA out of memory. Tried to allocate 1024.00 KiB. GPU 1 has a total capacity of 1024.00 KiB of "
            "which 512.00 KiB is free."
        )
        assert allocated(1) == 512 * 1024
        with pytest.raises(torch.OutOfMemoryError, match="GPU 1 has"):
            x @ torch.zeros(1024, 1024, device="cuda:1")
        assert [torch.cuda.memory_stats(gpu)["num_ooms"] for gpu in range(2)] == [0, 2]
        del x
        assert torch.zeros(256, 1024, device="cuda:1").is_cuda
        assert torch.cuda.mem_get_info(1) == (1024**2, 1024**2)


def test_summaries(one_gpu):
    keep = torch.zeros(1024, device="cuda")
    assert "4096 B" in torch.cuda.memory_summary() or "4 KiB" in torch.cuda.memory_summary()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == keep.nbytes == 4096
    assert torch.accelerator.memory_allocated() == 4096
    torch.cuda.empty_cache()


def test_a_fraction_of_the_memory_is_the_limit_from_then_on():
    with labkit.simulate(gpus=2, memory="1 MiB"):
        torch.zeros(3 * 2**16, device="cuda:1")  # the peak: up to there, little has to be counted
        keep = torch.zeros(2**16, device="cuda:1")  # a quarter
        torch.cuda.memory_stats(1)
        torch.cuda.set_per_process_memory_fraction(0.5, 1)
        assert torch.cuda.get_per_process_memory_fraction(1) == 0.5
        with pytest.raises(torch.OutOfMemoryError, match="512.00 KiB allowed"):
            torch.zeros(2**16 + 128, device="cuda:1")
        more = torch.zeros(2**16, device="cuda:1")
        assert allocated(1) == keep.nbytes + more.nbytes


@pytest.mark.parametrize("kind", ["allocated", "reserved", "active", "requested"])
def test_statistics_count_from_their_reset(kind):
    def read(what):
        return torch.cuda.memory_stats()[f"{kind}_bytes.all.{what}"]

    with labkit.simulate(gpus=1):
        kept = torch.zeros(128, device="cuda")
        dropped = torch.zeros(256, device="cuda")
        del dropped
        assert [read(what) for what in ("current", "allocated", "freed")] == [512, 1536, 1024]
        torch.cuda.reset_accumulated_memory_stats()
        assert [read(what) for what in ("current", "allocated", "freed")] == [512, 0, 0]
        more = torch.zeros(128, device="cuda")
        del kept
        assert [read(what) for what in ("current", "allocated", "freed")] == [512, 512, 512]
        del more
        assert [read(what) for what in ("current", "allocated", "freed")] == [0, 512, 1024]


def test_what_was_ever_allocated_outlives_a_machine_in_between():
    with labkit.simulate(gpus=1) as machine:
        torch.zeros(2**20, device="cuda")
        torch.zeros(128, device="cuda")
        total = machine.gpus[0].total()
        with labkit.simulate(gpus=1):
            torch.zeros(2**20, device="cuda")
            assert machine.gpus[0].total() == total == 4 * 2**20 + 512
        torch.zeros(128, device="cuda")
        assert machine.gpus[0].total() == total + 512


def test_the_last_kib_is_counted_too():
    with labkit.simulate(gpus=1, memory="1 MiB"):
        keep = torch.zeros(1022, 256, device="cuda")  # 2 KiB are left
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 8\.00 KiB"):
            torch.zeros(2048, device="cuda")
        assert torch.zeros(512, device="cuda").nbytes + keep.nbytes == 1024**2


def test_an_out_tensor_that_grows_is_counted_anew(one_gpu):
    x = torch.zeros(512, device="cuda")
    for call, size in (
        (lambda out: torch.cat([x, x], out=out), 4096),
        (lambda out: torch.add(x, x, out=out), 2048),
    ):
        out = torch.empty(0, device="cuda")
        assert allocated(0) == 2048
        call(out)
        assert allocated(0) == 2048 + size
        del out


def test_what_has_no_values_takes_no_memory(one_gpu):
    on_gpu = torch.ones(4, device="cuda")
    shape = torch.empty(2**20, device="meta")
    assert (shape.is_meta, shape.is_cuda, shape.is_cpu) == (True, False, False)
    made = on_gpu.new_empty(2**20, device="meta")
    empty = on_gpu.to("meta")
    assert (made.device, empty.device, allocated(0)) == (torch.device("meta"), torch.device("meta"), 512)
    with torch.device("meta"):
        assert torch.ones(4).is_meta


def test_a_tensor_that_takes_anothers_size_is_counted_anew(one_gpu):
    small, big = torch.zeros(128, device="cuda"), torch.zeros(1280, device="cuda")
    assert small.resize_as_(big).shape == big.shape
    assert allocated(0) == 2 * 5120


def test_the_statistics_tell_of_blocks_and_segments(gpus):
    kept = [torch.empty(n, device="cuda:1") for n in (1, 1, 10, 1 << 20)]  # the last one: 4 MiB
    empty = torch.empty(0, device="cuda:1")
    with pytest.raises(NotImplementedError, match="has no torch._C._cuda_record_memory_history"):
        torch.cuda.memory._record_memory_history()
    stats = torch.cuda.memory_stats(1)
    assert len(kept) == stats["segment.all.current"]
    assert stats["allocated_bytes.small_pool.current"] == 1536
    assert stats["requested_bytes.small_pool.current"] == 48
    assert stats["allocation.large_pool.current"] == 1
    assert (stats["num_device_alloc"], stats["num_sync_all_streams"]) == (3, 0)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats(1)["num_sync_all_streams"] == 1
    del empty


def test_gradients_are_counted_when_backward_ends_though_nobody_reads_them():
    def run():
        layer = nn.Linear(1024, 1024, bias=False, device="cuda")  # 4 MiB
        layer(torch.ones(1, 1024, device="cuda")).sum().backward()
        layer.weight.grad = None
        return layer

    with labkit.simulate(gpus=1):
        keep = run()
        assert allocated(0) == 4 * 2**20
        assert 8 * 2**20 <= torch.cuda.max_memory_allocated() < 8 * 2**20 + 16 * 1024
        del keep
    with (
        labkit.simulate(gpus=1, memory="7 MiB"),
        pytest.raises(torch.OutOfMemoryError, match=r"allocate 4\.00 MiB"),
    ):
        run()


@pytest.mark.parametrize("make", [
    lambda: torch.zeros(2**18, device="cuda", requires_grad=True),
    lambda: torch.zeros(2**18, device="cuda").requires_grad_(),
    lambda: torch.zeros_like(torch.zeros(2**18, device="cuda"), requires_grad=True),
    lambda: torch.zeros(1, device="cuda").new_zeros(2**18, requires_grad=True),
    lambda: torch.tensor([0.0] * 2**18, device="cuda", requires_grad=True),
    lambda: nn.Parameter(torch.zeros(2**18, device="cuda")),
    lambda: nn.Parameter(torch.zeros(2**18)).cuda().detach().requires_grad_(),
    lambda: nn.Linear(2**18, 1, bias=False).cuda().weight,
    lambda: copy.deepcopy(nn.Linear(2**18, 1, bias=False, device="cuda")).weight,
])  # fmt: skip
def test_whatever_gets_a_gradient_is_looked_at(make, one_gpu):
    x = make()
    before = allocated(0)
    (x * 2).sum().backward()
    assert allocated(0) == before + 2**20
    x.grad = None
    assert allocated(0) == before


def test_the_gradient_that_is_kept_of_a_result_counts_too(one_gpu):
    x = torch.zeros(2**18, device="cuda", requires_grad=True)
    y = x * 2
    y.retain_grad()
    y.sum().backward()
    assert allocated(0) == 4 * 2**20
    del y
    assert allocated(0) == 2 * 2**20


def test_a_tensor_that_moves_takes_its_gradient_along(gpus):
    layer = nn.Linear(2**18, 1, bias=False).cuda(1)
    layer(torch.zeros(1, 2**18, device="cuda:1")).sum().backward()
    layer.cuda(0)
    layer.weight.grad = None
    layer(torch.zeros(1, 2**18, device="cuda:0")).sum().backward()
    assert (allocated(0), allocated(1)) == (2 * 2**20, 0)


@pytest.mark.parametrize("read", [False, True])
def test_a_bucket_that_no_group_of_pythons_meets_counts_once(read):
    seen = []
    with labkit.simulate(gpus=1):
        dist.init_process_group("cpu:gloo,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            layer = nn.Linear(1024, 1024, bias=False, device="cuda")  # 4 MiB, and 512 bytes of the Reducer's
            if read:
                layer.weight.register_post_accumulate_grad_hook(
                    lambda weight: seen.append(weight.grad.device)
                )
            model = nn.parallel.DistributedDataParallel(layer, gradient_as_bucket_view=True)
            found = [allocated(0)]
            for _ in range(3):
                model(torch.ones(1, 1024, device="cuda")).sum().backward()
                found.append(allocated(0))
            del model
        finally:
            dist.destroy_process_group()
        assert found == [8 * 2**20 + 512] * 4


class Through(torch.autograd.Function):
    """Hands its input on; its backward calls ``meanwhile``."""

    @staticmethod
    def forward(ctx, x, meanwhile):
        ctx.meanwhile = meanwhile
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.meanwhile()
        return grad, None


@pytest.mark.parametrize("nested", [False, True])
def test_what_the_engine_makes_after_a_backward_in_python_has_begun_is_counted(gpus, nested):
    def step(through):
        with torch.enable_grad():
            first, second = (torch.zeros(1024, device="cuda", requires_grad=True) for _ in range(2))
            # Bytes are counted when one of the two gradients is there.
            second.register_post_accumulate_grad_hook(lambda _: print(torch.cuda.memory_allocated()))
            before = torch.cuda.memory_allocated()
            doubled = first * 2
            through(second * 2 + doubled).sum().backward()
            del doubled
            assert torch.cuda.memory_allocated() - before == 2 * 4096

    if nested:
        x = torch.zeros(1, device="cuda", requires_grad=True)
        Through.apply(x, lambda: step(lambda y: y)).sum().backward()
    else:
        step(lambda y: Through.apply(y, torch.cuda.memory_allocated))
