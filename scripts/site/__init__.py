"""Builds the site of docs/."""
