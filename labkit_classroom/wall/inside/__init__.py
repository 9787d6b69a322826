"""Goes into the sandbox with a student's code: no judge, no solution, no expected value stands in this folder."""
