"""Agent² RL-Bench: can an LLM agent engineer the RL post-training of another model?"""

__version__ = "0.1.0"
