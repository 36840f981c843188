"""The agent systems, one module each."""
