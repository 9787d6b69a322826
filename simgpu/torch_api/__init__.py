"""The parts of torch that are replaced while a machine is in use, and the answers that stand there instead."""
