"""Hand out: read the roster, make the class folder, write an edition of the assignment for each student."""
