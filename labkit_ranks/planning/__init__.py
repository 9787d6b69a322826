"""A script's need of memory and time, known by running it on hollow tensors (:mod:`simgpu.features.hollow`)."""
