"""What is said of a wrong answer: the hint that course and classroom share, where judges look for it."""

from ..course.judging import Hint

__all__ = ["Hint"]
