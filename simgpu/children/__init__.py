"""Child processes of a simulated machine: what they are told, and what runs in them first."""
