"""Types only: what every other package speaks. Imports nothing of agent2rl."""
