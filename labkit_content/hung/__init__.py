"""The ten broken scripts of lesson 19: broken, repaired, their data, and the hints on wrong repairs."""
