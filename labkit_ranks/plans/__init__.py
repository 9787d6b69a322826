"""What lies and moves where when ranks share a model, from integers only."""
