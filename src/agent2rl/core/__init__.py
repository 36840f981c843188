"""Shared types of all packages. Imports nothing else from agent2rl."""
