"""The gateway to the driver LLM: it meters agents' requests and adds the API key, which they never see."""
