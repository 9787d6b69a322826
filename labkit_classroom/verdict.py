"""The hint for a wrong answer, which course and classroom share, where a teacher's judges import it."""

from labkit_course.judging import Hint as Hint
