"""Base models that ship with agent2rl, one module each."""
