"""The harness of PyTorch's own tests: its reasons are rows of the documentation, and it picks and names tests rightly."""

import argparse
import re

from labkit.machine import fidelity

from . import pytorch_own
