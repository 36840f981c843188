"""Ways to run a model, one module each."""
