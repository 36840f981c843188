"""The base models that agent2rl ships, one module each."""
