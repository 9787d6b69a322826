"""The wall between the judge and a student's code: ``inside`` runs the code, the rest watches it from outside."""
