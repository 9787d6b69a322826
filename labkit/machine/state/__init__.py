"""What a machine remembers: bytes, places, streams, random states, turns of threads."""
