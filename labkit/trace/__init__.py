"""Traces: the events of a run, and the recording that catches them."""
