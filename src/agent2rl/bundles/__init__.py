"""Bundles: a finished run in one file that others can check."""
