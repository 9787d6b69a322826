"""A CRNN to repair: what DataParallel makes of a batch that is not on dimension 0."""
