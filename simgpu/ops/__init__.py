"""The function mode for every call of torch, and handlers of single functions."""
