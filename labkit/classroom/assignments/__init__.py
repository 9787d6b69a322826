"""The assignments that come with labkit, a folder for each (see :mod:`labkit.classroom.assignment`)."""
