"""The work of torchrun: its arguments, logs and restarts, with ranks in one process or in several."""
