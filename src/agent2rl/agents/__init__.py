"""Supported agents, one module each."""
