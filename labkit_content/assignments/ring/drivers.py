"""The student's functions on ranks, each with a simulated GPU. It knows no expected value."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from labkit_classroom.meeting import globals_of
from labkit_classroom.sandbox.inside import ranks


def change_tensors(student, name, given, right=""):
    """Call the function ``name`` on as many ranks as there are tensors ``given``, each with its own.

    Return what is in the tensors afterwards, and what the ranks called and sent.

    right   source of functions that replace those of the same names meanwhile.
    """
    told = change_each(student, name, [given], right)
    return told | {"results": [found for (found,) in told["results"]]}


def change_each(student, name, cases, right=""):
    """Do the same for each of the ``cases`` in turn, on the same ranks. A rank's result is a list of tensors."""
    shares = [{"name": name, "tensors": list(own), "right": right} for own in zip(*cases, strict=True)]
    return ranks.run(student, change_own_tensors, shares, threads=True)


def change_own_tensors(student, name, tensors, right):
    tensors = [tensor.clone().cuda() for tensor in tensors]
    with _replaced_functions(student[name], right):
        for tensor in tensors:
            student[name](tensor)
    return [tensor.cpu() for tensor in tensors]


def change_filled(student, name, values, length):
    """Call ``name`` on a rank for each of ``values``: with as many chunks of ``length`` numbers, all of this value.

    A rank's result is the smallest and the largest number of each chunk.
    """
    shares = [{"name": name, "value": value, "shape": [len(values), length]} for value in values]
    return ranks.run(student, change_own_filled, shares, threads=True)


def change_own_filled(student, name, value, shape):
    chunks = torch.full(shape, float(value)).cuda()
    student[name](chunks)
    return torch.stack([chunks.amin(1), chunks.amax(1)], 1).cpu()


def average_gradients(student, weights, gradients, right):
    """Call ``average`` on as many ranks as there are lists of ``gradients``, one for each parameter or None."""
    shares = [{"weights": weights, "gradients": own, "right": right} for own in gradients]
    return ranks.run(student, average_own_gradients, shares, threads=True)


def average_own_gradients(student, weights, gradients, right):
    model = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights]).cuda()
    for parameter, gradient in zip(model, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone().cuda()
    with _replaced_functions(student["average"], right):
        student["average"](model)
    return [None if parameter.grad is None else parameter.grad.cpu() for parameter in model]


_inside = []  # an entry for each rank within the context; the last rank restores the names


@contextmanager
def _replaced_functions(function, source):
    """Within the context, let ``function`` find the functions that ``source`` defines."""
    made = {"torch": torch, "dist": dist}
    exec(source, made)
    names = globals_of(function)
    given = {name: one for name, one in made.items() if callable(one)}
    before = _inside[0] if _inside else {name: names[name] for name in given if name in names}
    _inside.append(before)
    names.update(given)
    try:
        yield
    finally:
        _inside.pop()
        if not _inside:
            for name in given:
                names.pop(name, None)
            names.update(before)
