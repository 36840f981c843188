"""A world's training games, as training programs want them."""

from agent2rl.environments.faces.opening import open_world

__all__ = ["open_world"]
