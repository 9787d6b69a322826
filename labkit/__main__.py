"""``python -m labkit`` is ``labkit``."""

import sys

from .cli import main

sys.exit(main())
