"""Ranks in one process: threads that take turns."""
