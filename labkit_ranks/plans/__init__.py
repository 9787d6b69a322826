"""Plan how ranks share a model, from integers only."""
