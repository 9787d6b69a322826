"""The split rule and the four primitives."""
