"""The folder that stands in the PYTHONPATH of processes that are to see a simulated machine; see ..children."""
