"""The memory of a machine: bytes, places, streams, random states, turns of threads."""
