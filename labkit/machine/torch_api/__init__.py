"""What of torch is replaced while a machine is in use, and the answers that stand there instead."""
