"""The hint for a wrong answer, for import by a teacher's judges. Course and classroom share it."""

from labkit_course.judging import Hint as Hint
