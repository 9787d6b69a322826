"""Measure the memory and time that a script needs by running it on tensors without data."""
