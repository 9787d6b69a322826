"""The mode that every call of torch passes, and the handlers of the functions that need more than it does."""
