"""Taking in: which file is whose, and which answers are in it. Nothing of a student's is run here."""
