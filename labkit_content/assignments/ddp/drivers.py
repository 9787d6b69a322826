"""The student's functions in several ranks, each a process of its own on simulated GPUs. It knows no expected value."""

import os
import pickle
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import labkit

LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def start(student, meet, nodes, gpus):
    """Gives of every rank what ``start`` returned, the current GPU, and what the group says of the rank.

    When all have started, each gets a number that no other knows, and tells those that reach it through the group.
    """

    def work(rank):
        real, asked = dist.init_process_group, []

        def join(backend=None, *arguments, **more):
            asked.append(str(backend))
            said = {"rank": "RANK", "world_size": "WORLD_SIZE"}
            rank, size = (int(more.get(name, os.environ[variable])) for name, variable in said.items())
            _join(real, rank, size)

        with mock.patch.object(dist, "init_process_group", join):
            try:
                device, error = _call(student, "start", {real: join}), None
            except Exception as raised:
                device, error = None, f"{type(raised).__name__}: {raised}".partition("\n")[0]
        joined = dist.is_initialized()
        number, heard = meet() if joined else 0, []
        if number:
            heard = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
            dist.all_gather(heard, torch.tensor([number]))
        return {
            "number": number,
            "heard": [int(one) for one in heard],
            "device": str(device) if isinstance(device, torch.device) else None,
            "kind": type(device).__name__,
            "error": error,
            "current": torch.cuda.current_device(),
            "rank": dist.get_rank() if joined else None,
            "size": dist.get_world_size() if joined else None,
            "backend": asked,
        }

    return ranks(nodes * gpus, work, gpus=gpus, join=False)


def loader(student, rows, batch_size, size):
    """Gives of every rank the rows of each batch, in two epochs."""

    def work(rank):
        found = student["loader"](TensorDataset(torch.arange(rows)), batch_size)
        epochs = []
        for epoch in range(2):
            if hasattr(found.sampler, "set_epoch"):
                found.sampler.set_epoch(epoch)
            epochs.append([batch[0].tolist() for batch in found])
        return epochs

    return ranks(size, work, gpus=size)


def wrap(student, weights, x):
    """Gives of every rank its device and that of the weights, the first weights, and the gradient for its own rows.

    Rank k begins with ``weights[k]``, and has the rows ``x[k]``.
    """

    def work(rank):
        linear = _linear(weights[rank])
        model = student["wrap"](linear, torch.device("cuda", rank))
        inner = getattr(model, "module", model)
        place, first = str(inner.weight.device), inner.weight.detach().cpu().clone()
        model(x[rank].to(f"cuda:{rank}")).square().sum().backward()
        gradient = inner.weight.grad
        return {
            "place": place,
            "first": first,
            "gradient": None if gradient is None else gradient.cpu(),
            "kind": type(model).__name__,
        }

    return ranks(len(x), work, gpus=len(x))


def step(student, weight, x, y):
    """Gives of every rank the weights after one step with learning rate 1, and what ``step`` returned."""

    def work(rank):
        model = DistributedDataParallel(_linear(weight).to(f"cuda:{rank}"), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for parameter in model.parameters():  # a step that forgets to clear them is seen
            parameter.grad = torch.ones_like(parameter)
        told = student["step"](model, x[rank].to(f"cuda:{rank}"), y[rank].to(f"cuda:{rank}"), optimizer)
        if isinstance(told, torch.Tensor):
            told = told.item()
        return model.module.weight.detach().cpu(), told

    return ranks(len(x), work, gpus=len(x))


def save(student, weight, size):
    """Counts how often the file was written, reads it, and says which ranks found it when ``save`` had returned."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.pt")

        def work(rank):
            model = DistributedDataParallel(_linear(weight).to(f"cuda:{rank}"), device_ids=[rank])
            real, written = torch.save, []

            def slow(value, file, *arguments, **more):
                written.append(os.fspath(file) == path)
                time.sleep(0.3)  # so that whoever does not wait is sooner
                real(value, f"{file}.{rank}", *arguments, **more)
                os.replace(f"{file}.{rank}", file)

            with mock.patch.object(torch, "save", slow):
                _call(student, "save", {real: slow}, model, path)
            return len(written), os.path.exists(path)

        told = ranks(size, work, gpus=size)
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            saved = type(error).__name__
    return {"written": [count for count, _ in told], "found": [found for _, found in told], "saved": saved}


def _linear(weight):
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    return model


def _call(student, name, instead, *arguments):
    """Call the student's function; where its names hold a function of PyTorch's that is watched, they get the other."""
    names = getattr(student[name], "__globals__", {})
    for key, value in list(names.items()):
        for real, other in instead.items():
            if value is real:
                names[key] = other
    return student[name](*arguments)


class RankFailed(RuntimeError):
    """A rank raised an error, or ended without a word."""


def ranks(size, work, *, gpus, join=True):
    """Runs ``work(rank)`` in each of ``size`` processes, ``gpus`` simulated GPUs to a machine; gives the results in order."""
    import torch._dynamo  # noqa: F401 (DDP imports it: once, here, and not in every rank)

    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(size):
            pid = os.fork()
            if not pid:
                _rank(rank, size, gpus, folder, work, join)
            pids.append(pid)
        try:
            _wait(pids)
        finally:
            for pid in pids:
                _end(pid)
        found = []
        for rank in range(size):
            try:
                with open(os.path.join(folder, f"{rank}.told"), "rb") as file:
                    found.append(pickle.load(file))
            except FileNotFoundError:
                found.append(("ended", f"rank {rank} ended without a word"))
        # Where several failed, the others have mostly lost the one that failed first.
        failed = [(told[2:], rank, told) for rank, told in enumerate(found) if told[0] == "raised"]
        if failed:
            _, rank, (_, text, _) = min(failed, key=lambda one: one[0])
            raise RankFailed(f"rank {rank}: {text}")
        for kind, value in found:
            if kind == "ended":
                raise RankFailed(value)
        return [value for _, value in found]


def _rank(rank, size, gpus, folder, work, join):
    """Be one rank, and end."""
    try:
        torch.set_num_threads(1)
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank % gpus), LOCAL_WORLD_SIZE=str(gpus),
            GROUP_RANK=str(rank // gpus), MASTER_ADDR="127.0.0.1", MASTER_PORT="29511",
        )  # fmt: skip
        if sys.platform in LOOPBACK:
            os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
        os.environ["MEET"] = f"file://{folder}/meet"
        labkit.simulate(gpus=gpus)
        torch.manual_seed(rank)
        if join:
            torch.cuda.set_device(rank % gpus)
            _join(dist.init_process_group, rank, size)
        told = ("gave", work(rank))
    except BaseException as error:
        last = traceback.format_exception_only(error)[-1].strip()
        told = ("raised", last, time.monotonic())
    with open(os.path.join(folder, f"{rank}.part"), "wb") as file:
        pickle.dump(told, file)
    os.replace(os.path.join(folder, f"{rank}.part"), os.path.join(folder, f"{rank}.told"))
    os._exit(0)


def _join(real, rank, size):
    """Join the group: gloo carries what the simulated GPUs hold, and the ranks meet at a file.

    None goes on before all have come: a rank that has nothing more to do ends, and others would find it gone.
    """
    meet = os.environ["MEET"]
    real("cpu:gloo,cuda:gloo", init_method=meet, rank=rank, world_size=size, timeout=timedelta(seconds=15))
    dist.all_reduce(torch.zeros(1))


def _wait(pids):
    """Waits until all have ended, but not much longer than for the first: the others may wait for it in vain."""
    left, until = set(pids), None
    while left and (until is None or time.monotonic() < until):
        for pid in list(left):
            ended, _ = os.waitpid(pid, os.WNOHANG)
            if ended:
                left.discard(pid)
                until = until or time.monotonic() + 15
        time.sleep(0.005)


def _end(pid):
    try:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
