"""What else can break: the cases of a lesson, each with what the check-up says of it and its cure."""

from .board import CASES, Cases

__all__ = ["CASES", "Cases"]
