"""The former path of :mod:`labkit_ranks.pytest_plugin`."""

import sys

import labkit_ranks.pytest_plugin

sys.modules[__name__] = labkit_ranks.pytest_plugin
