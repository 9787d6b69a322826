"""A rank: numbers, clock, and the state of a process."""
