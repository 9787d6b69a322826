"""torch.cuda and torch.accelerator on a simulated machine."""

import copy
import pickle
import threading
import warnings
from unittest import mock

import pytest
import torch
from torch import nn

import labkit
from simgpu.state.errors import NotSimulated

pytestmark = pytest.mark.usefixtures("gpus")


def test_a_change_of_type_by_name_stays_on_the_gpu():
    x = torch.ones(2, device="cuda:1")
    for kind in ("torch.cuda.DoubleTensor", torch.cuda.DoubleTensor, torch.float64):
        assert (x.type(kind).dtype, x.type(kind).device) == (torch.float64, torch.device("cuda:1"))
    assert torch.ones(2).type("torch.cuda.HalfTensor").device == torch.device("cuda:0")
    assert x.type("torch.DoubleTensor").device == x.type(torch.DoubleTensor).device == torch.device("cpu")
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.DoubleTensor)
    assert torch.cuda.FloatTensor([1, 2]).device == torch.device("cuda:0")
    assert torch.cuda.FloatTensor([1, 2], device="cuda:1").device == torch.device("cuda:1")


def test_the_current_device_belongs_to_the_thread():
    torch.cuda.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
    thread.start()
    thread.join()
    assert (torch.cuda.current_device(), seen) == (1, [0])
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    assert torch.cuda.current_device() == 1


def test_streams_and_events():
    stream = torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream(0) == torch.cuda.default_stream(0)
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1) != stream
    assert torch.cuda.default_stream(0) != torch.cuda.default_stream(1)  # the same number, another GPU
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_stream(1) == stream != torch.accelerator.current_stream(0)
    torch.cuda.set_device(0)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(1000, 1000, device="cuda") * 2
    end.record()
    torch.cuda.synchronize()
    assert 0 < start.elapsed_time(end) < 1
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(end)


def test_a_stream_that_is_entered_chooses_its_gpu_and_gives_back_what_was_chosen():
    first, second = torch.cuda.Stream(device=1), torch.cuda.Stream(device=1)
    with first:
        assert torch.cuda.current_device() == 1
        with second, first:
            assert torch.cuda.current_stream() == first
        assert torch.cuda.current_stream() == first
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


def test_waiting_brings_a_gpu_to_the_events_time_and_never_back():
    def timed(gpu):
        with torch.cuda.device(gpu):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event

    start, early = timed(1), timed(0)
    torch.ones(2**24, device="cuda:0")
    late = timed(0)
    late.wait(torch.cuda.default_stream(1))
    waited = timed(1)
    assert start.elapsed_time(waited) > early.elapsed_time(late) / 2  # 33 µs passed on the other GPU
    early.wait(torch.cuda.default_stream(1))  # long past
    assert 0 < waited.elapsed_time(timed(1)) < 0.006  # the 5 µs of a record
    with pytest.raises(RuntimeError, match="both events must be on one device, got cuda:1 and cuda:0"):
        start.elapsed_time(late)


def test_virtual_times_repeat():
    def measure():
        with labkit.simulate(gpus=1):
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            torch.ones(500, 500, device="cuda") @ torch.ones(500, 500, device="cuda")
            b.record()
            return a.elapsed_time(b)

    assert measure() == measure()


def test_generators_belong_to_a_kind_of_device():
    mine, host = torch.Generator("cuda:1").manual_seed(1), torch.Generator()
    for call in (
        lambda: torch.randn(2, device="cuda:1", generator=host),
        lambda: torch.ones(2, device="cuda:1").uniform_(generator=host),
        lambda: nn.init.normal_(torch.ones(2, device="cuda:1"), generator=host),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            call()
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.randperm(3, generator=mine)
    wrong_kind = pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator")
    with torch.device("cuda"), wrong_kind:
        list(torch.utils.data.DataLoader(torch.ones(4), shuffle=True))
    for again in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert again.device == torch.device("cuda:1")
        assert torch.equal(again.get_state(), mine.get_state())
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.cuda.default_generators[1].device == torch.device("cuda:1")


def test_profilers_and_ranges_run(capfd):
    layer, x = nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
    with torch.autograd.profiler.profile(use_device="cuda") as found, torch.cuda.nvtx.range("forward"):
        layer(x)
    assert "aten::linear" in found.key_averages().table()
    assert torch.cuda.nvtx.range_push("a") == 0
    assert torch.cuda.nvtx.range_pop() == 0
    handles = [torch.cuda.nvtx.range_start("b") for _ in range(2)]
    assert handles[0] != handles[1]
    assert "Failed" not in capfd.readouterr().err


def test_autocast_casts_on_gpus_only():
    layer = nn.Linear(4, 4).cuda()
    x = torch.ones(2, 4, device="cuda")
    with torch.autocast("cuda"):
        y = layer(x)
        assert y.dtype is torch.float16
        assert torch.softmax(y, 1).dtype is torch.float32
        assert nn.functional.layer_norm(y, (4,)).dtype is torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        with torch.autocast("cuda", enabled=False):
            assert layer(x).dtype is torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.functional.binary_cross_entropy(y.sigmoid(), y)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    assert layer(x).dtype is torch.float32


def test_autocast_on_gpus_leaves_the_hosts_as_it_was():
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16), torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.float16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_a_scaled_step():
    layer = nn.Linear(4, 4).cuda(1)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), 0.1), torch.amp.GradScaler("cuda")
    before = layer.weight.detach().clone()
    with torch.autocast("cuda"):
        loss = layer(torch.ones(2, 4, device="cuda:1")).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 65536.0
    assert not torch.equal(layer.weight, before)


def test_what_an_optimizer_updates_together_is_known_by_its_place():
    x, y, z = torch.ones(1, device="cuda:1"), torch.ones(1, device="cuda:0"), torch.ones(1, device="cuda:1")
    groups = torch._C._group_tensors_by_device_and_dtype([[x, y, z], [], [None, y, z]], True)
    assert groups == {
        (torch.device("cuda:1"), torch.float32): ([[x, z], [], [None, z]], [0, 2]),
        (torch.device("cuda:0"), torch.float32): ([[y], [], [y]], [1]),
    }


def test_a_stream_gives_its_handle_and_an_event_its_number_once_it_is_recorded():
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    assert stream.__cuda_stream__() == (0, stream.cuda_stream)
    assert event.event_id == 0
    event.record(stream)
    assert event.event_id == event.cuda_event != 0


def test_torch_inductor_finds_the_class_that_it_imports_where_cuda_is_there():
    from torch._C import _cuda_CUDAAllocator_AllocatorState as AllocatorState

    assert isinstance(AllocatorState, type)
    # A CUDA build has the class itself.
    with pytest.raises((NotImplementedError, TypeError), match="AllocatorState"):
        AllocatorState()


def test_a_gpu_has_a_context_once_it_is_chosen_or_used():
    has = torch._C._cuda_hasPrimaryContext
    x = torch.ones(1, device="cuda:1")
    assert (has(0), has(1)) == (False, True)
    assert "cuda:1" in repr(x)
    assert not has(0)
    torch.cuda.set_device(0)
    assert has(0)


def test_a_tensor_of_a_storage_is_the_storage_itself_where_it_is_wanted():
    x = torch.arange(3.0, device="cuda:1")
    here = torch.tensor(x.untyped_storage(), dtype=torch.float32, device="cuda:1")
    assert (here.device, here.tolist()) == (torch.device("cuda:1"), [0, 1, 2])
    assert here.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    typed = torch.storage.TypedStorage(wrap_storage=x.untyped_storage(), dtype=x.dtype, _internal=True)
    assert torch.tensor(typed).device.type == "cpu"
    assert torch.tensor(typed, device="cuda:0", requires_grad=True).requires_grad
    assert torch.cuda.memory_allocated(0) == 0
    wrong_type = "^Expected a Storage of type Half or an UntypedStorage, but got Float$"
    with pytest.raises(RuntimeError, match=wrong_type):
        torch.tensor(typed, dtype=torch.half)
    host = torch.ones(3)
    assert torch.tensor(host.untyped_storage(), dtype=torch.float32, device="cuda:1").is_cuda
    assert not host.is_cuda


def test_nobody_asks_whose_generator_it_is_that_draws_nothing():
    for device, other in (("cuda:1", "cpu"), ("cpu", "cuda"), ("cuda:0", "cuda:1")):
        nothing = torch.randperm(0, device=device, generator=torch.Generator(other))
        assert nothing.device == torch.device(device)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randperm(1, device="cuda", generator=torch.Generator())


def test_an_emptied_tensor_stays_where_it_was():
    x = torch.ones(2, device="cuda:1")
    assert (x.set_().device, x.numel(), torch.cuda.memory_allocated(1)) == (torch.device("cuda:1"), 0, 0)


def test_a_tensor_on_a_gpu_is_none_of_the_hosts_types():
    for x in (torch.ones(1, device="cuda:1"), nn.Parameter(torch.ones(1, device="cuda:0"))):
        assert not isinstance(x, torch.FloatTensor)
        assert isinstance(x, torch.cuda.FloatTensor)
        assert isinstance(x.cpu(), torch.FloatTensor)
        assert not isinstance(x.cpu(), (torch.cuda.FloatTensor, torch.DoubleTensor))


def test_properties_are_one_object_for_each_gpu():
    first, second = map(torch.cuda.get_device_properties, (0, 1))
    assert first == torch.cuda.get_device_properties("cuda:0") != second
    uuids = [f"00000000-0000-0000-0000-00000000000{at}" for at in (0, 1)]
    assert [str(each.uuid) for each in (first, second)] == uuids
    assert second.uuid.bytes == [0] * 15 + [1]
    assert str(second.uuid) in repr(second)
    assert [(one.pci_domain_id, one.pci_device_id) for one in (first, second)] == [(0, 0), (0, 0)]
    assert (second.is_integrated, second.is_multi_gpu_board) == (0, 0)


def test_a_generator_has_no_offset_and_says_what_to_keep():
    for ask in (torch.cuda._get_rng_state_offset, lambda: torch.cuda._set_rng_state_offset(100)):
        with pytest.raises(NotSimulated, match=r"get_state\(\) and set_state\(\)"):
            ask()
    with pytest.raises(RuntimeError, match="CPU Generator does not use offset"):
        torch.Generator().get_offset()


def test_a_driver_has_nothing_to_say(gpus, monkeypatch):
    gpus.close()
    monkeypatch.setattr(torch.cuda, "_HAS_PYNVML", True)  # a computer that has it, and GPUs of its own
    labkit.simulate(gpus=1)
    names = "utilization temperature power_draw clock_rate memory_usage list_gpu_processes"
    for name in names.split():
        with pytest.raises(NotImplementedError, match="a simulated GPU has no driver"):
            getattr(torch.cuda, name)()
    held = torch.ones(1000, device="cuda")
    assert torch.cuda.device_memory_used(0) == held.untyped_storage().nbytes() + 96


def test_cudnn_is_there_and_takes_no_weights():
    from torch.backends import cudnn

    assert cudnn.is_available()
    assert cudnn.version() > 91500  # the first with which attention prefers it
    with cudnn.flags(enabled=True, benchmark=True, deterministic=True):
        assert cudnn.benchmark
        assert nn.LSTM(2, 3).cuda()(torch.ones(1, 1, 2, device="cuda"))[0].is_cuda
    assert not cudnn.is_acceptable(torch.ones(1, device="cuda"))


def test_a_barrier_may_name_its_gpu():
    made = torch.distributed.distributed_c10d.BarrierOptions()
    made.device = torch.device("cuda", 1)
    assert made.device == torch.device("cpu")  # where gloo makes the tensor that it waits for
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        made.device = torch.device("cuda", 2)


def test_autocast_knows_cuda_by_a_number_too():
    x = torch.ones(2, 2, device="cuda:1")
    with torch.autocast("cuda:0", dtype=torch.half):
        assert (x @ x).dtype == torch.half


def test_the_old_tensor_types_are_not_recommended_and_listed_with_the_others():
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match="constructors are no longer recommended") as caught:
            torch.cuda.FloatTensor([0])
    finally:
        torch.set_warn_always(always)
    assert caught[0].filename == __file__
    kind = torch.cuda.HalfTensor
    assert kind in torch._tensor_classes
    assert (kind.dtype, kind.layout, kind.is_cuda, kind.is_sparse) == (torch.half, torch.strided, True, False)
    assert (kind.is_xpu, kind.is_sparse_csr) == (False, False)


def test_a_typed_storage_is_said_to_be_deprecated_once():
    storage = torch.cuda.FloatStorage(2)
    torch.storage._reset_warn_typed_storage_removal()
    always = mock.patch("torch.storage._always_warn_typed_storage_removal", True)
    with always, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        storage.fill_(1)
    assert len(caught) == 1


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_fused_optimizer_reads_its_rate_on_the_host_or_on_its_own_gpu(kind):
    weight = nn.Parameter(torch.ones(2, device="cuda:1"))
    weight.grad = torch.ones_like(weight)
    for rate in (torch.tensor(0.5), torch.tensor(0.5, device="cuda:1")):
        kind([weight], lr=rate, fused=True).step()
    assert bool((weight < 1).all())


def test_memory_of_the_host_is_pinned_by_a_copy_that_nobody_waits_for():
    x = torch.ones(4)
    here = x.to("cuda:1", non_blocking=True)
    assert here.to("cpu", non_blocking=True).is_pinned()
    assert not here.cpu().is_pinned()


def test_one_stream_entered_by_two_threads_gives_each_its_own_back():
    stream, entered, go, seen = torch.cuda.Stream(device=1), threading.Event(), threading.Event(), []

    def work():
        torch.cuda.set_device(1)
        with stream:
            entered.set()
            go.wait(30)
        seen.append(torch.cuda.current_device())

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(30)
    with stream:
        pass
    assert torch.cuda.current_device() == 0
    go.set()
    thread.join()
    assert seen == [1]


def test_a_tensor_on_the_default_device_is_printed_without_it():
    x = torch.tensor([1], device="cuda:0")
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    try:
        assert repr(x) == "tensor([1])"
        assert repr(torch.tensor([1], device="cuda:1")) == "tensor([1], device='cuda:1')"
        assert repr(torch.tensor([1], device="cpu")) == "tensor([1], device='cpu')"
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert repr(x) == "tensor([1], device='cuda:0')"


def test_the_runtimes_errors_are_those_of_a_released_build(monkeypatch):
    with pytest.raises(torch.AcceleratorError) as caught:
        torch.ones(1, device="cuda:99")
    lines = str(caught.value).split("\n")
    assert lines[:2] == [
        "CUDA error: invalid device ordinal",
        "GPU device may be out of range, do you have enough GPUs?",
    ]
    assert lines[-2:] == ["Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.", ""]
    assert len(lines) == 6
    assert caught.value.error_code == 101
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(torch.AcceleratorError) as caught:
        torch.ones(1, device="cuda:99")
    assert str(caught.value).split("\n") == [*lines[:2], *lines[-2:]]


def test_memory_of_a_gpu_is_shared_and_the_hosts_only_when_asked(gpus):
    assert torch.ones(2, device="cuda:1").is_shared()
    host = torch.ones(2)
    assert not host.is_shared()
    assert host.share_memory_().is_shared()


MODELS = {  # name, capability, processors, GiB
    "V100": ("Tesla V100-SXM2-16GB", (7, 0), 80, 16),
    "A100-40": ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 40),
    "A100-80": ("NVIDIA A100 80GB PCIe", (8, 0), 108, 80),
    "H100": ("NVIDIA H100 80GB HBM3", (9, 0), 132, 80),
    "H200": ("NVIDIA H200", (9, 0), 132, 141),
    "T4": ("Tesla T4", (7, 5), 40, 15),
    "L4": ("NVIDIA L4", (8, 9), 58, 23),
    "rtx 4090": ("NVIDIA GeForce RTX 4090", (8, 9), 128, 24),
}


@pytest.mark.parametrize("called", MODELS)
def test_the_gpus_pass_for_a_model(called):
    name, capability, processors, size = MODELS[called]
    with labkit.simulate(gpus=2, gpu_model=called):
        told = torch.cuda.get_device_properties(1)
        assert (torch.cuda.get_device_name(1), torch.cuda.get_device_capability(1)) == (name, capability)
        assert told.multi_processor_count == processors
        assert size * 0.93 < told.total_memory / 2**30 <= size
        assert torch.cuda.get_arch_list() == ["sm_{}{}".format(*capability)]
        with torch.cuda.device(1):
            assert torch.cuda.mem_get_info()[1] == told.total_memory
        assert torch.cuda.is_bf16_supported(including_emulation=False) == (capability >= (8, 0))
    with labkit.simulate(gpus=1, gpu_model=called, memory="1 GiB"):
        assert torch.cuda.get_device_properties(0).total_memory == 2**30


def test_without_a_model_they_pass_for_none():
    with labkit.simulate(gpus=1):
        told = torch.cuda.get_device_properties(0)
        assert (told.name, told.major, told.minor) == ("labkit simulated GPU", 9, 0)
        assert (told.total_memory, told.multi_processor_count) == (16 * 2**30, 132)


@pytest.mark.parametrize("called", ["A100", "", 3, "simulated"])
def test_an_unknown_model_is_refused_with_the_choices(called):
    with pytest.raises(ValueError, match=r"gpu_model must be one of V100, A100-40, .*, RTX-4090, got"):
        labkit.simulate(gpus=1, gpu_model=called)


def test_streams_and_events_say_what_they_are_and_what_they_lack():
    stream, event, other = torch.cuda.Stream(device=1), *(torch.cuda.Event(enable_timing=True) for _ in "ab")
    assert stream.query() is True
    assert event.query() is True
    assert torch.cuda.Stream.priority_range() == (0, -3)
    assert repr(stream) == f"<torch.cuda.Stream device=cuda:1 cuda_stream={stream.stream_id:#x}>"
    assert repr(event) == "<torch.cuda.Event uninitialized>"
    given = [torch.cuda.Stream(priority=wanted).priority for wanted in (-9, -3, -1, 0, 1)]
    assert given == [-3, -3, -1, 0, 0]
    event.record(stream)
    with pytest.raises(RuntimeError, match="^Event device 1 does not match recording stream's device 0.$"):
        event.record(torch.cuda.default_stream(0))
    assert event.device.index == 1
    assert repr(event) == "<torch.cuda.Event 0.000005 s>"
    with pytest.raises(ValueError, match="^Both events must be recorded before calculating elapsed time.$"):
        event.elapsed_time(other)
    with pytest.raises(RuntimeError, match="^a stream needs a cuda device, got 'cpu'$"):
        torch.Stream("cpu")
    with pytest.raises(RuntimeError, match="^record_stream needs a tensor on a GPU, got one on cpu$"):
        torch.ones(1).record_stream(stream)


def rows(device="cuda:1"):
    return torch.ones(2, 3, device=device)


# What the machine lacks, by name or with a sentence; and calls that PyTorch's CUDA refuses in its own words.
REFUSED = {
    "has no torch._C._cublas_handle": lambda: torch._C._cublas_handle(),
    "has no torch._C._cudnn_version": lambda: torch._C._cudnn_version(),
    "has no torch._C._nccl_all_reduce": lambda: torch._C._nccl_all_reduce(),
    "has no torch._C._cuda_graph": lambda: torch._C._cuda_graph(),
    "has no torch._C._cuda_tunableop_enable": lambda: torch._C._cuda_tunableop_enable(True),
    "has no torch._C._CUDAGraph": lambda: torch.cuda.CUDAGraph(),
    "has no torch._C._cuda_set_sync_debug_mode": lambda: torch.cuda.set_sync_debug_mode("warn"),
    "has no torch._C._cuda_memorySnapshot": lambda: torch.cuda.memory_snapshot(),
    "has no torch._C._cudart.cudaHostRegister": lambda: torch.cuda.cudart().cudaHostRegister(0, 1, 0),
    "has no torch._C._cudart.cudaStreamDestroy": lambda: torch.cuda.cudart().cudaStreamDestroy(1),
    "has no torch._C._cudart.cudaGetErrorString": lambda: torch.cuda.check_error(2),
    "has no torch._C._activate_gpu_trace": lambda: torch._C._activate_gpu_trace(),  # by torch.cuda._sanitizer
    "alloc.* needs a real GPU": lambda: torch.cuda.caching_allocator_alloc(1000),
    "Blas.* needs a real GPU": lambda: torch.cuda.current_blas_handle(),
    "[mM]emoryStats.* needs a real GPU": lambda: torch.cuda.host_memory_stats(),
    "plan_cache needs a real GPU": lambda: torch.backends.cuda.cufft_plan_cache.size,
    "torch.export does not see labkit's simulated GPUs": lambda: torch.export.export(
        nn.Linear(3, 2).cuda(), (rows(),)
    ),
}
REFUSED_BY_TORCH = {
    "doesn't support getting device capabilities": lambda: torch.accelerator.get_device_capability(),
    "^Invalid device, must be cuda device$": lambda: torch.ones(1).cuda("cpu"),
    r"^All tensors must be on devices\[0\]: 0$": lambda: torch._C._broadcast_coalesced(
        [rows()], [0, 1], 2**20
    ),
    "^Expected non-negative device index, but got -1$": lambda: torch._C._broadcast(rows(), [-1]),
    "^_share_cuda_: only available on CUDA$": lambda: rows("meta").untyped_storage()._share_cuda_(),
}


@pytest.mark.parametrize("words", REFUSED | REFUSED_BY_TORCH)
def test_what_no_simulated_gpu_can_do_is_refused_in_these_words(words):
    error = NotImplementedError if words in REFUSED else RuntimeError
    with pytest.raises(error, match=words):
        (REFUSED | REFUSED_BY_TORCH)[words]()


def test_the_runtime_can_be_copied_and_a_missing_name_is_an_attribute_error():
    assert copy.copy(torch.cuda.cudart()).cudaProfilerStart() == torch.cuda.cudart().cudaProfilerStop() == 0
    with pytest.raises(AttributeError, match="module 'torch._C' has no attribute 'labkit_thing'"):
        torch._C.labkit_thing  # noqa: B018
