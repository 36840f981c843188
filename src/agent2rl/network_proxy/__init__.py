"""The only way out of an agent's sandbox: an HTTP proxy that applies the run's network policy."""
