"""Small network parts that several packages share."""
