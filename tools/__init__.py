"""What maintainers and authors run; not a part of the package."""
