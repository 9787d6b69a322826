"""Explorers: controls for a plan, and a picture that follows."""
