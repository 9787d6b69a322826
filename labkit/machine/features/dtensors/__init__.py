"""``DTensor`` on simulated GPUs: wrappers, their local tensors, attention and random numbers."""
