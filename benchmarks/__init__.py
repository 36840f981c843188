"""Speed and figures, each as a ratio against a named rival."""
