"""What every room may use: numbers, units, languages, nested structures, pictures of objects, patches, turns."""
