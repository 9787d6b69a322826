"""The exercises of the lessons: texts in NN_lesson.txt, and in lesson.py what needs code."""
