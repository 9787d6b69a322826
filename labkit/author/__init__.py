"""What who writes lessons needs: both languages in one text, and kept in step."""
