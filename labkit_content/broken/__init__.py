"""The ten broken models of lesson 09: broken, repaired, the batches they get, and what a wrong repair shows."""
