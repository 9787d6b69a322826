"""Pictures are drawn without a window."""

import matplotlib as mpl

mpl.use("Agg")
