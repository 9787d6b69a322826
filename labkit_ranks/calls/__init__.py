"""Collective calls: facts, arithmetic, checks of arguments, and faults among several calls."""
