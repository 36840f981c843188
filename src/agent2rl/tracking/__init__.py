"""Mirrors run directories in trackers: what is told, and when. Trackers themselves are plugins."""
