"""Compare one training under several layouts of simulated ranks: ``labkit parity``."""
