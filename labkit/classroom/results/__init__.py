"""What people get to see of a grading: feedback pages, the class at a glance, tables of marks."""
