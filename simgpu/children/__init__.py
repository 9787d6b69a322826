"""Child processes of a simulated machine: their environment, and the code that runs in them first."""
