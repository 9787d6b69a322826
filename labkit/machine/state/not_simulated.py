"""The base of errors about things that the simulated machine does not have."""


class NotSimulated(Exception):
    """A real GPU may well do this. By this class the check-up tells such an error from one of the model's."""
