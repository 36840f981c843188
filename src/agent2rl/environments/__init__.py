"""Interactive environments ("worlds"): one package per engine, and adapters for training programs."""
