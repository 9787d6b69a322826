"""Calls of the student's functions."""


def split(student, cases):
    return [student["split"](rows, gpus) for rows, gpus in cases]


def scatter(student, batch, count):
    return list(student["scatter"](batch, count))
