"""Notebooks run: with parameters that are checked, one run or one for each number of GPUs, and what came out."""
