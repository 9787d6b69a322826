"""Calls of the attacked functions."""


def double(student, x):
    return student["double"](x)


def triple(student, x):
    return student["triple"](x)
