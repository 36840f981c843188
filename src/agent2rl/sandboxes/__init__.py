"""Ways to enclose a process, one module each, and what they share."""
