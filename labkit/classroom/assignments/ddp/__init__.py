"""From a DataParallel script to DDP, piece by piece."""
