"""Ranks in one process, as threads by turns."""
