"""Child processes of a simulated machine: their environment and their first code."""
