"""Handing out: the roster, the class folder, and an edition of the assignment for each student."""
