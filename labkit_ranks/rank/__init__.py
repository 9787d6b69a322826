"""One rank: its numbers, its clock, and all that belongs to it as to a process of its own."""
