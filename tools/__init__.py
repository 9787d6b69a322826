"""Commands for maintainers and authors, outside of the wheel."""
