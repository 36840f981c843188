"""The way to the driver LLM: what agents ask it, metered and with keys that they never see."""
