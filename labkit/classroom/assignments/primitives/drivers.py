"""Calls of the student's functions: what is sent to the worker. It knows no expected value."""

import labkit


def split(student, cases):
    """What ``split`` gives for each pair of rows and GPUs."""
    return [student["split"](rows, gpus) for rows, gpus in cases]


def scatter(student, batch, gpus):
    with labkit.simulate(gpus=gpus):
        pieces = student["scatter"](batch, [f"cuda:{gpu}" for gpu in range(gpus)])
        return [(str(piece.device), piece.detach().cpu()) for piece in pieces]
