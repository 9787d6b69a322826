"""Call the student's functions in the worker. No expected value is known here."""

import threading
import time
from unittest import mock

import torch
from torch import nn

import labkit
from labkit.base.tree import map_tensors
from labkit.plans.split import split as split_rows
from labkit_classroom.meeting import globals_of
from labkit_classroom.sandbox.inside.replicas import plain


def split(student, cases):
    """Calls ``split`` for each pair of rows and GPUs."""
    return [student["split"](rows, gpus) for rows, gpus in cases]


def scatter(student, inputs, gpus):
    """The entries of ``scatter``, each tensor as (device, values)."""
    with labkit.simulate(gpus=gpus):
        return describe_tensors(student["scatter"](inputs, devices(gpus)))


def scatter_each(student, cases):
    """Do the same for each pair of inputs and GPUs."""
    return [scatter(student, inputs, gpus) for inputs, gpus in cases]


def scatter_backward(student, batch, gpus):
    """The lengths of the pieces, and the batch's gradient when piece k is multiplied by k + 1 and all is added up."""
    with labkit.simulate(gpus=gpus):
        batch = batch.clone().requires_grad_()
        pieces = student["scatter"](batch, devices(gpus))
        lengths = [len(piece) for piece in pieces]
        if not all(piece.requires_grad for piece in pieces):
            return lengths, None
        sum((piece * (at + 1)).sum().to("cpu") for at, piece in enumerate(pieces)).backward()
        return lengths, batch.grad


def scatter_sizes(student, rows, columns, gpus):
    """The lengths of the pieces of a large batch and the first number of each."""
    with labkit.simulate(gpus=gpus):
        batch = torch.arange(rows).repeat_interleave(columns).reshape(rows, columns)
        pieces = student["scatter"](batch, devices(gpus))
        return [(len(piece), int(piece[0, 0])) for piece in pieces]


class Net(nn.Module):
    """A model with nested layers and a buffer. With ``tied``, two layers share a weight."""

    def __init__(self, weights, tied, buffer=True):
        super().__init__()
        size = weights.shape[-1]
        self.body = nn.Sequential(nn.Linear(size, size), nn.Sequential(nn.Tanh(), nn.Linear(size, size)))
        if buffer:
            self.register_buffer("shift", weights[2, 0].clone())
        with torch.no_grad():
            self.body[0].weight.copy_(weights[0])
            self.body[1][1].weight.copy_(weights[1])
            for layer in (self.body[0], self.body[1][1]):
                layer.bias.zero_()
        if tied:
            self.body[1][1].weight = self.body[0].weight

    def forward(self, x):
        return self.body(x) + getattr(self, "shift", 0)


def replicate(student, weights, batch, gpus, tied, buffer):
    """Gives of every replica where its output is, the output for the whole batch, the devices of its weights, and
    whether its two layers share one.

    Then the gradient of the first weight, if ``backward`` reaches it, and whether the model is what it was.
    """
    with labkit.simulate(gpus=gpus):
        model = Net(weights, tied, buffer).to("cuda:0")
        before = {
            name: (id(value), str(value.device)) for name, value in model.state_dict(keep_vars=True).items()
        }
        used = [torch.cuda.memory_allocated(gpu) for gpu in range(gpus)]
        replicas = student["replicate"](model, devices(gpus))
        if len({id(replica) for replica in replicas}) < len(replicas):
            return {"replicas": [], "gradient": None, "unchanged": False, "distinct": False}
        seen, total, kept = [], 0, [parameter.detach().clone() for parameter in model.parameters()]
        for at, replica in enumerate(replicas):
            if (
                at == 1
            ):  # replicas from here on must compute with copies, so take the model's own weights away
                _set_parameters(model, map(torch.zeros_like, kept))
            output = replica(batch.to(f"cuda:{at}"))
            grown = torch.cuda.max_memory_allocated(at) - used[at] if at else 0
            places, shared = {f"cuda:{at}"}, grown < 1.5 * used[0]  # of a replica that is no Net
            if hasattr(replica, "body"):
                layers = (replica.body[0], replica.body[1][1])
                places = {place(value) for layer in layers for value in (layer.weight, layer.bias)}
                shared = layers[0].weight is layers[1].weight
            seen.append((describe_tensors(output), sorted(places), shared))
            total = total + (output.to("cuda:0") * (at + 1)).sum()
        _set_parameters(model, kept)
        gradient = None
        if total.requires_grad:
            total.backward()
            gradient = model.body[0].weight.grad
        after = {
            name: (id(value), str(value.device)) for name, value in model.state_dict(keep_vars=True).items()
        }
        return {
            "replicas": seen,
            "gradient": plain(gradient),
            "unchanged": before == after,
            "distinct": True,
        }


def _set_parameters(model, values):
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)


def replicate_buffer(student, weights, gpus):
    """The buffer of every replica."""
    with labkit.simulate(gpus=gpus):
        model = Net(weights, False).to("cuda:0")
        zeros, found = torch.zeros(1, weights.shape[-1]), []
        for at, replica in enumerate(student["replicate"](model, devices(gpus))):
            if at == 1:
                model.shift.zero_()
            # For zeros, a replica returns the buffer: all biases are zero.
            found.append(
                describe_tensors(
                    replica.shift if hasattr(replica, "shift") else replica(zeros.to(f"cuda:{at}"))[0]
                )
            )
        return found


def apply_order(student, pieces):
    """Replica k adds 100 k; later ones are done sooner."""
    done = [threading.Event() for _ in pieces]

    def replica(at):
        def run(piece):
            # With a limit, because an answer may run one replica after the other.
            if at + 1 < len(pieces) and done[at + 1].wait(0.5):
                time.sleep(0.05)  # meanwhile the later one returns to the answer
            done[at].set()
            return piece + 100 * at

        return run

    return plain(list(student["parallel_apply"]([replica(at) for at in range(len(pieces))], list(pieces))))


def apply_together(student, meet, count):
    """Return each replica's number from the meeting."""
    outputs = student["parallel_apply"]([lambda piece: piece + meet()] * count, [torch.zeros(1)] * count)
    return plain(list(outputs))


class Planned(ValueError):
    """An error of a replica, which the caller is to meet."""


def apply_errors(student, count, failing):
    """For each number of a failing replica, return the caller's error's type, and whether it has the replica's message."""
    return [_apply_error(student, count, at) for at in failing]


def _apply_error(student, count, failing):
    def replica(piece):
        if int(piece) == failing:
            raise Planned(f"piece {failing} of {count}")
        return piece

    try:
        student["parallel_apply"]([replica] * count, [torch.tensor(at) for at in range(count)])
    except Exception as error:
        return type(error).__name__, f"piece {failing} of {count}" in str(error)
    return None, False


def apply_grad_mode(student, enabled):
    """Says whether gradients are on inside each of two replicas, and afterwards in the caller."""

    def replica(piece):
        return torch.tensor(torch.is_grad_enabled())

    with torch.set_grad_enabled(enabled):
        outputs = student["parallel_apply"]([replica, replica], [torch.zeros(1)] * 2)
        return [bool(output) for output in outputs] + [torch.is_grad_enabled()]


def gather(student, outputs, device, gpus):
    """Gather outputs from several GPUs: output k is on cuda:k."""
    with labkit.simulate(gpus=gpus):
        placed = [
            map_tensors(output, lambda _, tensor, at=at: tensor.to(f"cuda:{at}"))
            for at, output in enumerate(outputs)
        ]
        return describe_tensors(student["gather"](placed, device))


def gather_each(student, cases, gpus):
    """Do the same for each pair of outputs and device."""
    return [gather(student, outputs, device, gpus) for outputs, device in cases]


def gather_backward(student, outputs):
    """The gradients of the outputs when gathered row r is multiplied by r + 1 and all is added up."""
    with labkit.simulate(gpus=len(outputs)):
        leaves = [output.clone().requires_grad_() for output in outputs]
        joined = student["gather"]([leaf.to(f"cuda:{at}") for at, leaf in enumerate(leaves)], "cuda:0")
        if not joined.requires_grad:
            return None
        (joined * torch.arange(1.0, len(joined) + 1, device="cuda:0")[:, None]).sum().backward()
        return [leaf.grad for leaf in leaves]


class Watched(nn.Module):
    """Gives after each row's output where that was computed: GPU, rows there, how many replicas had been made."""

    made = 0

    def __init__(self, weights):
        super().__init__()
        self.weight = nn.Parameter(weights.clone())

    def forward(self, x):
        gpu = -1 if x.device.index is None else x.device.index
        where = torch.tensor([[gpu, len(x), self.made]], dtype=x.dtype, device=x.device)
        return torch.cat([(x @ self.weight).tanh(), where.expand(len(x), 3)], 1)


def call(student, weights, batch, gpus):
    """Call ``data_parallel`` with labkit's four steps as globals."""

    def replicate(model, devices):
        made = model.made + len(devices)
        replicas = labkit.replicate(model, devices)
        for one in (model, *replicas):
            one.made = made
        return replicas

    given = {
        "split": lambda rows, gpus: list(split_rows(rows, gpus).sizes),
        "scatter": labkit.scatter,
        "replicate": replicate,
        "gather": labkit.gather,
    }
    given["parallel_apply"] = lambda replicas, pieces: labkit.parallel_apply(
        replicas, [(piece,) for piece in pieces]
    )
    with mock.patch.dict(globals_of(student["data_parallel"]), given), labkit.simulate(gpus=gpus):
        model = Watched(weights).to("cuda:0")
        output = student["data_parallel"](model, batch, devices(gpus))
        value = describe_tensors(output)
        if getattr(output, "requires_grad", False):
            output.sum().backward()
        return {"output": value, "gradient": plain(model.weight.grad)}


def devices(gpus):
    return [f"cuda:{gpu}" for gpu in range(gpus)]


def place(tensor):
    """Return a tensor's device, even if its class overrides ``device``."""
    return str(torch.Tensor.as_subclass(tensor, torch.Tensor).device)


def describe_tensors(value):
    """Gives ``value`` with each tensor as (device, values)."""
    return map_tensors(value, lambda _, tensor: (place(tensor), tensor.detach().cpu()))
