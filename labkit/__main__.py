"""``python -m labkit`` is ``labkit``."""

import sys

from labkit_cli import main

sys.exit(main())
