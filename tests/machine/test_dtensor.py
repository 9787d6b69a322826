"""DTensor and FSDP2 on one rank of a simulated machine: wrappers, local tensors, gradients and memory on its GPU."""

import io
import subprocess
import textwrap
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, _sharding_prop, distribute_tensor, rand, zeros

import labkit
from simgpu.features import dtensors
from tools.warm import python

CUDA1, CPU = torch.device("cuda:1"), torch.device("cpu")


@pytest.fixture
def mesh():
    with labkit.simulate(gpus=2):
        torch.cuda.set_device(1)
        dist.init_process_group("cpu:gloo,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield dist.device_mesh.init_device_mesh("cuda", (1,))
        finally:
            dist.destroy_process_group()


def places(tensor):
    return {tensor.device, tensor._local_tensor.device, tensor.to_local().device}


def test_a_dtensor_and_what_is_made_of_it(mesh):
    x = distribute_tensor(torch.ones(4, 4, device=CUDA1), mesh, [Shard(0)])
    made = [x, x + 1, x @ x.redistribute(placements=[Replicate()]), x.sum(), x.t(), x.split(2, dim=1)[0]]
    made += [
        x.view(2, 2, 4), x.add_(1), nn.functional.dropout(x), zeros(2, device_mesh=mesh),
        rand(2, device_mesh=mesh),
    ]  # fmt: skip
    assert [places(each) for each in made] == [{CUDA1}] * len(made)
    assert x.is_cuda
    assert x.full_tensor().device == CUDA1
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert places(torch.load(file, weights_only=False)) == {CUDA1}
    weight = distribute_tensor(torch.randn(4, 4), mesh, [Shard(1)]).requires_grad_()
    (x @ weight).relu().sum().backward()
    assert places(weight.grad) == {CUDA1}


def test_shapes_are_found_once_for_all_threads_and_anew_for_other_numbers(mesh, monkeypatch):
    made, found = [], []
    real = _sharding_prop.FakeTensorMode
    monkeypatch.setattr(_sharding_prop, "FakeTensorMode", lambda: made.append("mode") or real())
    monkeypatch.setattr(dtensors, "_found_shapes", {})
    whole = distribute_tensor(torch.arange(6).reshape(2, 3), mesh, [Replicate()])

    def ask():
        results = [whole**2, whole**2.0, whole**True, whole.sum(1), whole.sum(0), whole.t().sum(1)]
        found.append([(one._spec.tensor_meta.dtype, one.shape, one.to_local().shape) for one in results])

    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        made.append("end")
    assert made[-3:] == ["mode", "end", "end"]
    assert found[0] == found[1]
    assert [dtype for dtype, *_ in found[0][:3]] == [torch.int64, torch.float32, torch.int64]
    assert all(shape == local for _, shape, local in found[0])


def test_what_torch_imports_while_the_machine_is_in_use_is_on_the_gpu_too():
    # A process of its own: torch registers the autograd of collectives in Python when it is first asked for them.
    script = """
        import torch, torch.distributed as dist
        import labkit

        labkit.simulate(2)
        torch.cuda.set_device(1)
        dist.init_process_group("cpu:gloo,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
        import torch.distributed._functional_collectives as functional

        x = torch.ones(4, device="cuda")
        summed = functional.all_reduce(x, "sum", dist.group.WORLD)
        print(summed.device, summed.wait().device, (summed + 1).device, functional.wait_tensor(summed).device)
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = dist.device_mesh.init_device_mesh("cuda", (1,))
        sharded = distribute_tensor(x, mesh, [Shard(0)])
        print((sharded + 1).to_local().device, sharded.sum().to_local().device, sharded.full_tensor().device)
        dist.destroy_process_group()
    """
    done = subprocess.run(
        [*python(), "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["cuda:1"] * 7


@pytest.mark.parametrize("watched", ["determinism", "a factor on the host"])
def test_dtensors_are_asked_for_shapes_while_operators_are_watched(mesh, watched):
    """What the machine watches leaves fake tensors, by which DTensor asks for shapes, to their own mode."""
    host = watched == "a factor on the host"
    if watched == "determinism":
        torch.use_deterministic_algorithms(True)
    try:
        x = distribute_tensor(torch.ones(6, 6, device=CUDA1), mesh, [Shard(0)])
        x.add_(x, alpha=torch.tensor(0.5) if host else 0.5)
        layer = fully_shard(nn.Linear(6, 6, device=CUDA1))
        layer(torch.ones(2, 6, device=CUDA1)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert places(x) == places(layer.weight.grad) == {CUDA1}
    torch.testing.assert_close(x.full_tensor().cpu(), torch.full((6, 6), 1.5))
    torch.testing.assert_close(layer.weight.grad.full_tensor().cpu(), torch.full((6, 6), 2.0))


def test_an_operator_without_an_order_on_shards_is_still_refused(mesh):
    x = distribute_tensor(torch.ones(6, 6, device=CUDA1), mesh, [Shard(1)])
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="median CUDA with indices output does not have"):
            x.median(0)
    finally:
        torch.use_deterministic_algorithms(False)
