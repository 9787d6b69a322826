"""The results of a grading for people: feedback pages, the class at a glance, tables of marks."""
