"""The classroom: assignments, handed out, collected, graded and given back."""
