"""The run directory: the only code that knows where a run's files are."""
