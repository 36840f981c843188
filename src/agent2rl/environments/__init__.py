"""Interactive worlds, one engine each."""
