"""``python -m labkit.distributed`` is ``python -m labkit_ranks``."""

import labkit_ranks.__main__  # noqa: F401
