"""Judge answers, and store marks."""
