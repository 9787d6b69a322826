"""The CPU's kernels compute for the simulated GPUs; where they differ from CUDA's, this answers as CUDA's do."""
