"""The tasks, one package each. Hidden in the agent's sandbox, because they hold evaluation data."""
