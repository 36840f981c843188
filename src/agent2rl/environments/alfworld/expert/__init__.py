"""An expert that plays ALFWorld from what it reads. Without it, a run hides this folder from the agent."""

from agent2rl.environments.alfworld.expert.player import PUTTING, AlfworldExpert

__all__ = ["PUTTING", "AlfworldExpert"]
