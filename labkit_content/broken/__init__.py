"""The ten broken models of lesson 09: broken, repaired, their batches, and the hints on wrong repairs."""
