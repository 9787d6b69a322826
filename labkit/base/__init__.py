"""Every room may use these: numbers, units, languages, texts, nested structures, pictures of objects, patches."""
