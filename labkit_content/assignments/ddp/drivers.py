"""Call the student's functions on several ranks, each in a process with simulated GPUs. No expected value is known here."""

import os
import sys
import tempfile
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from labkit_classroom.meeting import globals_of
from labkit_classroom.sandbox.inside import ranks

_PATIENCE = 20  # seconds on the clock for ranks that wait by looking for the file again and again


def start(student, nodes, gpus):
    """Return of every rank what ``start`` returned, the current GPU, and what the group says of the rank.

    Each rank that has started gets a number that no other knows, and tells those that it reaches through its group.
    """
    numbers = [int.from_bytes(os.urandom(4), "big") for _ in range(nodes * gpus)]
    more = {"gpus": gpus, "joins": False, "isolated": False}
    told = ranks.run(student, start_rank, [{}] * len(numbers), notice=lambda rank, *_: numbers[rank], **more)
    return [one | {"number": number} for one, number in zip(told["results"], numbers, strict=True)]


def start_rank(student):
    real, backends, places = dist.init_process_group, [], []

    def join(backend=None, *arguments, **more):
        backends.append(str(backend))
        said = {"rank": "RANK", "world_size": "WORLD_SIZE"}
        place = [int(more.get(name, os.environ[variable])) for name, variable in said.items()]
        places.append(place)
        ranks.join_group(*place)

    with mock.patch.object(dist, "init_process_group", join):
        try:
            device, error = call(student, "start", {real: join}), None
        except Exception as raised:
            device, error = None, f"{type(raised).__name__}: {raised}".partition("\n")[0]
    heard, size = [], int(os.environ["WORLD_SIZE"])
    if dist.is_initialized() and places == [[int(os.environ["RANK"]), size]]:
        heard = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(heard, torch.tensor([ranks.tell_judge()]))
    return describe_start(device, backends, error) | {"heard": [int(one) for one in heard]}


def describe_start(device, backends, error=None):
    joined = dist.is_initialized()
    return {
        "device": str(device) if isinstance(device, torch.device) else None,
        "kind": type(device).__name__,
        "error": error,
        "current": torch.cuda.current_device(),
        "rank": dist.get_rank() if joined else None,
        "size": dist.get_world_size() if joined else None,
        "backend": backends,
    }


def loader(student, rows, batch_size, size):
    """Return of every rank the rows of each batch, in two epochs."""
    shares = [{"rows": rows, "batch_size": batch_size}] * size
    return ranks.run(student, read_rows, shares, isolated=False)["results"]


def read_rows(student, rows, batch_size):
    found = student["loader"](TensorDataset(torch.arange(rows)), batch_size)
    epochs = []
    for epoch in range(2):
        if hasattr(found.sampler, "set_epoch"):
            found.sampler.set_epoch(epoch)
        epochs.append([batch[0].tolist() for batch in found])
    return epochs


def wrap(student, weights, x):
    """Return every rank's device, first weights and gradient.

    Rank k begins with ``weights[k]``, and has the rows ``x[k]``.
    """
    shares = [{"weight": weight, "x": rows} for weight, rows in zip(weights, x, strict=True)]
    return ranks.run(student, wrap_own_model, shares)["results"]


def wrap_own_model(student, weight, x):
    linear, rank = make_linear(weight), dist.get_rank()
    model = student["wrap"](linear, torch.device("cuda", rank))
    inner = getattr(model, "module", model)
    place, first = str(inner.weight.device), inner.weight.detach().cpu().clone()
    model(x.to(f"cuda:{rank}")).square().sum().backward()
    gradient = inner.weight.grad
    return {
        "place": place,
        "first": first,
        "gradient": None if gradient is None else gradient.cpu(),
        "kind": type(model).__name__,
    }


def step(student, weight, x, y):
    """Return of every rank the weights after one step with learning rate 1, what ``step`` returned, and the number of
    rows that the model computed for gradients; and the calls."""
    shares = [{"weight": weight, "x": rows, "y": wanted} for rows, wanted in zip(x, y, strict=True)]
    return ranks.run(student, take_own_step, shares)


def take_own_step(student, weight, x, y):
    device = f"cuda:{dist.get_rank()}"
    model = DistributedDataParallel(make_linear(weight).to(device), device_ids=[dist.get_rank()])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():  # shows a step that does not clear them
        parameter.grad = torch.ones_like(parameter)
    seen = []
    model.module.register_forward_hook(lambda _, x, y: seen.append(len(y) * torch.is_grad_enabled()))
    mean = student["step"](model, x.to(device), y.to(device), optimizer)
    mean = mean.item() if isinstance(mean, torch.Tensor) else mean
    return model.module.weight.detach().cpu(), mean, sum(seen)


def save(student, weight, size):
    """Return how often each rank wrote the file, on which ranks ``save`` returned after the writing, and the saved weights."""
    with tempfile.TemporaryDirectory() as folder:
        path, found = os.path.join(folder, "net.pt"), {}

        def look(rank, writes, waiting):
            if writes:  # hold the file back until the other ranks wait, or have returned without it
                ranks.wait_until(lambda: len(waiting | set(found)) == size, _PATIENCE)
            else:
                found[rank] = os.path.exists(path) and os.path.getsize(path) > 0

        shares = [{"weight": weight, "path": path}] * size
        written = ranks.run(student, save_own_model, shares, notice=look, isolated=False)["results"]
        saved = _read(path)
    return {"written": written, "found": [found.get(rank, False) for rank in range(size)], "saved": saved}


def save_own_model(student, weight, path):
    device = f"cuda:{dist.get_rank()}"
    model = DistributedDataParallel(make_linear(weight).to(device), device_ids=[dist.get_rank()])
    real, written = torch.save, []

    def watch(event, facts):
        """Count the audit events that replace the file or open it for writing."""
        renamed = event == "os.rename" and str(facts[1]) == path
        opened = event == "open" and str(facts[0]) == path and (facts[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if renamed or opened:
            written.append(event)

    def save_slowly(obj, f, *arguments, **more):
        ranks.tell_judge(True)
        if isinstance(f, (str, os.PathLike)):
            real(obj, f"{os.fspath(f)}.{dist.get_rank()}", *arguments, **more)
            os.replace(f"{os.fspath(f)}.{dist.get_rank()}", f)
        else:
            real(obj, f, *arguments, **more)

    sys.addaudithook(watch)
    with (
        mock.patch.object(torch, "save", save_slowly),
        mock.patch.object(torch.serialization, "save", save_slowly),
    ):
        call(student, "save", {real: save_slowly}, model, path)
    ranks.tell_judge(False)
    return len(written)


def _read(path):
    """Return the weights in the file, or the name of the error."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        return type(error).__name__


def make_linear(weight):
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    return model


def call(student, name, instead, *arguments):
    """Call the student's function with PyTorch's functions replaced by the watched ones."""
    names = globals_of(student[name])
    for key, value in list(names.items()):
        for real, other in instead.items():
            if value is real:
                names[key] = other
    return student[name](*arguments)
