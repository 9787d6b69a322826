"""Tells whoever asked for it of operators without a fixed order, and of calls that wait for a GPU."""
