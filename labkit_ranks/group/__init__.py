"""The process group of simulated ranks, and the Works of collectives."""
