"""How the notebooks are run by nbval, whichever of them are asked for: their kernels, and the time they took."""

import os
import time

os.environ["LABKIT_PROGRESS"] = "off"  # the notebooks' kernels inherit it


def pytest_configure(config):
    # nbval starts a kernel for each notebook. On an overloaded computer a start can hang: it is given up
    # after its timeout and tried again. A cell that fails is never tried again.
    try:
        from nbval import kernel
    except ImportError:
        return
    start = kernel.RunningKernel.__init__

    def start_again(self, *args, **kwargs):
        for attempt in (1, 2, 3):
            try:
                return start(self, *args, **kwargs)
            except (RuntimeError, TimeoutError):
                if attempt == 3:
                    raise
                time.sleep(1)

    kernel.RunningKernel.__init__ = start_again


def pytest_terminal_summary(terminalreporter):
    """How long each notebook took: a lesson is meant to run in 20 seconds on two cores."""
    seconds = {}
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, []):
            name = report.nodeid.partition("::")[0]
            if name.endswith(".ipynb"):
                seconds[name] = seconds.get(name, 0.0) + report.duration
    if seconds:
        slow = {name: took for name, took in seconds.items() if took > 20}
        longest = max(seconds, key=seconds.get)
        terminalreporter.write_line(
            f"notebooks: {len(seconds)} run, the longest {longest} in {seconds[longest]:.1f} s"
        )
        for name, took in slow.items():
            terminalreporter.write_line(f"over 20 s: {name} took {took:.1f} s", yellow=True)
