"""Taking turns: who runs when, and who is told to wait for whom."""
