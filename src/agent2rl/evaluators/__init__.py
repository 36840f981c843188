"""Ways to score a model on examples."""
