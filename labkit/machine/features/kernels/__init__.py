"""Where the CPU's kernels, which compute for the simulated GPUs, are not CUDA's."""
