"""The wire formats, each from the provider's side: reads a request, writes an answer or an error."""
