"""Present a grading: feedback pages, an overview of the class, tables of marks."""
