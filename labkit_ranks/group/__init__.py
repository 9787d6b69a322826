"""The process group of simulated ranks, and what a collective returns."""
