"""The author's room: a lesson in both languages as one text, and its two notebooks kept in step."""
