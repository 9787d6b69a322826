"""Python that C++ calls in the middle of an operation: dispatch modes, wrappers, kernels, hooks of saved tensors."""
