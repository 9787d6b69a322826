"""The ten broken scripts of lesson 19: broken, repaired, the data they get, and what a wrong repair shows."""
