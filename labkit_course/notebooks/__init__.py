"""The operator's room: notebooks run from outside, with checked parameters, once or once for each number of GPUs."""
