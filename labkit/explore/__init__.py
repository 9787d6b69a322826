"""Explorers: controls that move a plan, and the picture that follows."""
