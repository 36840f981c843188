"""Network helpers that several packages share."""
