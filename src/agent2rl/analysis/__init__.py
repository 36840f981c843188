"""Pure functions over records."""
