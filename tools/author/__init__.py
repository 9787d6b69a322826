"""Commands for authors: a lesson in both languages as one text, and two notebooks in sync."""
