"""What happens to a call of torch: the mode that every operation passes, and the subjects that need more."""
