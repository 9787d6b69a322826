"""torchrun for ranks in one process or several: arguments, logs, restarts."""
