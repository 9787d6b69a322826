"""Numbers, units, languages, texts, nested structures, patches: used by every package."""
