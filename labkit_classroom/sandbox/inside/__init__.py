"""Code that runs in the sandbox with a student's code: this folder holds no judge, no solution, no expected value."""
