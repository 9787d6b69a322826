"""Features of torch on the simulated machine, one to a file; an ordinary training script needs none of them."""
