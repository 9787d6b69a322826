"""The former path of :mod:`labkit_ranks`."""
