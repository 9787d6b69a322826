"""The content of the course and of the assignments; :mod:`labkit_course.content` finds it."""
