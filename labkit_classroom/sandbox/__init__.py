"""Run students' code in a sandbox: ``inside`` runs the code, the modules here limit it from outside."""
