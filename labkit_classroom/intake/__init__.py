"""Collect submissions: find the student of each file and the answers in it, without running any code."""
