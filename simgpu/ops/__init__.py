"""The mode that every call of torch passes, and handlers of functions that need more."""
