"""More than there is: CUDA's error for what a GPU has not, a clear one for what the computer has not."""

import gc
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import labkit
from simgpu.state import host

pytestmark = pytest.mark.usefixtures("gpus")
HUGE = 2**45  # elements: more bytes than addresses
OUT = r"^CUDA out of memory\. Tried to allocate .* GPU 1 has a total capacity of 16\.00 GiB of which "
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux alone promises more than it has"
)


def wide():
    return torch.ones(2**23, 1, device="cuda:1", requires_grad=True)


def backward_that_makes_too_much():
    whole = wide().expand(-1, 2**23)
    whole.as_strided((1,), (1,)).sum().backward()


@pytest.mark.parametrize("ask", [
    lambda: torch.empty(HUGE, device="cuda:1"), lambda: torch.zeros(size=(HUGE,), device="cuda:1"),
    lambda: torch.arange(HUGE, device="cuda:1"), lambda: torch.randperm(HUGE, device="cuda:1"),
    lambda: torch.ones(1).expand(HUGE).to("cuda:1"), lambda: wide().new_zeros(HUGE),
    lambda: torch.ones_like(wide().expand(-1, 2**23)), lambda: wide() @ wide().T, lambda: wide() + wide().T,
    lambda: wide().repeat(1, 2**23), lambda: torch.cat([wide().expand(-1, 2**23)] * 2),
    lambda: wide().expand(-1, 2**23).clone(),
    lambda: torch.add(wide().detach(), wide().detach().T, out=torch.empty(0, device="cuda:1")),
    lambda: nn.Linear(2**23, 2**23, device="cuda:1"), lambda: torch.cuda.FloatTensor(HUGE, device="cuda:1"),
    lambda: torch.empty(1, device="cuda:1").resize_(HUGE),
    lambda: torch.empty(1, device="cuda:1").untyped_storage().resize_(HUGE),
    lambda: torch.UntypedStorage(HUGE, device="cuda:1"), backward_that_makes_too_much,
])  # fmt: skip
def test_too_much_is_cudas_error_however_small_the_computer(ask):
    with pytest.raises(torch.OutOfMemoryError, match=OUT):
        ask()
    gc.collect()
    assert (torch.cuda.memory_allocated(1), torch.cuda.memory_stats(1)["num_ooms"]) == (0, 1)
    assert torch.ones(2, device="cuda:1").tolist() == [1, 1]


def test_more_than_an_exabyte_has_words_of_its_own():
    with pytest.raises(
        torch.OutOfMemoryError, match="^CUDA out of memory. Tried to allocate more than 1EB memory.$"
    ):
        torch.empty(2**60, device="cuda:1")


def test_a_tensor_that_cannot_grow_is_what_it_was():
    x = torch.ones(2, device="cuda:1")
    with pytest.raises(torch.OutOfMemoryError):
        x.resize_(HUGE)
    assert (x.device, x.tolist()) == (torch.device("cuda:1"), [1, 1])
    with labkit.simulate(gpus=2, memory="64 MiB"):
        storage = torch.ones(2, device="cuda:1").untyped_storage()
        with pytest.raises(torch.OutOfMemoryError):
            storage.resize_(80 * 2**20)
        assert (storage.device, storage.nbytes()) == (torch.device("cuda:1"), 8)


class Largest(TorchDispatchMode):
    """Knows how many bytes the computer was asked for at once."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device.type == "cpu":
            self.nbytes = max(self.nbytes, made.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("make", [
    lambda n: torch.ones(n, device="cuda:1"), lambda n: torch.ones(1).expand(n).cuda(1),
    lambda n: torch.zeros_like(torch.ones(1, device="cuda:1").expand(n)),
    lambda n: torch.ones(1, device="cuda:1").new_full((n,), 1.0),
    lambda n: nn.parallel.gather([torch.ones(1, device=k).expand(n) for k in (0, 1)], 1, dim=0),
    lambda n: torch.empty(1, device="cuda:1").resize_(n),
    lambda n: torch.UntypedStorage(4 * n, device="cuda:1"),
])  # fmt: skip
def test_the_limit_is_looked_at_before_the_computer_is_asked(make):
    with labkit.simulate(gpus=2, memory="64 MiB"):
        with Largest() as largest, pytest.raises(torch.OutOfMemoryError):
            make(20 * 2**20)
        assert largest.nbytes < 2**20


def test_what_was_dropped_in_a_cycle_makes_room():
    with labkit.simulate(gpus=1, memory="16 MiB"):
        cycle = [torch.empty(3 * 2**20, device="cuda")]
        cycle.append(cycle)
        del cycle
        assert torch.empty(2 * 2**20, device="cuda").is_cuda
        assert torch.cuda.memory_stats()["num_ooms"] == 0


def test_what_the_computer_has_not_is_said_of_the_computer(monkeypatch):
    monkeypatch.setattr(host, "available", lambda: 2**27)
    kept = torch.ones(2**20, device="cuda:1")
    for make in (
        lambda: torch.ones(2**26, device="cuda:1"),
        lambda: torch.full_like(kept, 1, dtype=torch.float64).expand(2**6, -1).to(torch.float32, copy=True),
        lambda: torch.ones(1).expand(2**26).to("cuda:1"),
    ):
        with pytest.raises(host.OutOfHostMemory, match=r"cuda:1 is simulated and has room for 256\.00 MiB,"):
            make()
    assert not isinstance(host.OutOfHostMemory("cuda:1", 1, None), torch.OutOfMemoryError)
    assert torch.empty(2**30, device="cuda:1").is_cuda  # never written: it costs nothing
    assert torch.cuda.memory_stats(1)["num_ooms"] == 0
    labkit.set_language("zh")
    with pytest.raises(host.OutOfHostMemory, match="cuda:1 是模拟的"):
        torch.ones(2**26, device="cuda:1")


def test_many_small_tensors_end_before_the_computers_memory_does(monkeypatch):
    monkeypatch.setattr(host, "WORTH", 2**20)
    left, looks = [True], []
    monkeypatch.setattr(host, "available", lambda: looks.append(1) or (2**40 if left[0] else 0))
    x = torch.ones(2**17, device="cuda:1")
    kept = [x * 2 for _ in range(8)]
    assert 2 <= len(looks) <= 5  # one for each MiB
    left[0] = False
    before = torch.cuda.memory_allocated(1)
    with pytest.raises(host.OutOfHostMemory, match="but this computer"):
        kept.extend(x * 2 for _ in range(8))
    assert before <= torch.cuda.memory_allocated(1) < before + 2**20
    kept.clear()
    left[0] = True
    assert (x * 2).is_cuda


def test_the_computers_allocator_is_translated(monkeypatch):
    gpu = labkit.simulate(gpus=2).gpus[1]
    for words in (
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 4096 bytes. Error code 12 (Cannot allocate memory)",
        "[enforce fail at alloc_cpu.cpp:100] data. DefaultCPUAllocator: not enough memory: you tried to "
        "allocate 4096 bytes.",
    ):
        assert isinstance(gpu.translate_error(RuntimeError(words)), host.OutOfHostMemory)
    other = RuntimeError("4096 bytes")
    assert gpu.translate_error(other) is other


@linux
def test_what_a_computer_and_its_containers_have(tmp_path, monkeypatch):
    gib = 2**30
    monkeypatch.setattr(host, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "cgroup")
    assert host.available() is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal: {16 * gib // 1024} kB\nMemAvailable: {4 * gib // 1024} kB\nSwapFree: {gib // 1024} kB\n"
    )
    assert host.available() == 5 * gib - 256 * 2**20
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/docker/one\n0::/pod/one\n")

    def group(path, limit, taken, names):
        place = tmp_path / "cgroup" / path
        place.mkdir(parents=True, exist_ok=True)
        (place / names[0]).write_text(f"{limit}\n")
        (place / names[1]).write_text(f"{taken}\n")
        (place / "memory.stat").write_text(
            f"{names[2]}inactive_file 0\n{names[2]}active_file {gib}\nanon {taken}\n"
        )

    new, old = (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    )
    group("pod/one", "max", gib, new)
    assert host.available() == 5 * gib - 256 * 2**20
    group("pod", 4 * gib, 2 * gib, new)
    assert host.available() == 3 * gib - 256 * 2**20
    group("memory", 2 * gib, 2 * gib, old)  # as a container sees its own
    assert host.available() == gib - 256 * 2**20
    group("memory/docker/one", gib, 2 * gib, old)
    assert host.available() == 0


def test_arguments_may_be_named():
    x = torch.ones(2, device="cuda:1")
    assert torch.zeros_like(input=x).device == torch.device("cuda:1")
    assert torch.zeros_like(input=torch.ones(1)).device.type == "cpu"
    assert (
        x.clone().resize_(size=(3,)).shape == x.clone().resize_as_(the_template=torch.ones(3)).shape == (3,)
    )
    for ask in (
        lambda: torch.zeros_like(input=x[:1].expand(HUGE)),
        lambda: x.resize_(size=(HUGE,)),
        lambda: x.resize_as_(the_template=torch.empty(HUGE, device="meta")),
    ):
        with pytest.raises(torch.OutOfMemoryError, match=OUT):
            ask()


def test_other_systems_are_not_asked_what_they_have(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert host.available() is None
