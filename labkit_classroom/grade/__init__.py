"""Grading: answers are judged, and marks are kept."""
