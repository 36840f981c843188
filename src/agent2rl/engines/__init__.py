"""Inference engines, one module each."""
