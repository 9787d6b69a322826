"""Ranks: any torchrun script on the simulated machine."""
