"""The tasks, one package each; hidden from the agent's sandbox because they hold the evaluation data."""
