"""What the errors have in common that say what the simulated machine does not have."""


class NotSimulated(Exception):
    """A real GPU may well do what was asked. The check-up tells such an error by this class from one of the model's."""
