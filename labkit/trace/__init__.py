"""Traces: the events of a run, and their recording."""
