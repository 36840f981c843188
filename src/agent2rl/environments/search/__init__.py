"""Search: questions that are answered by searching and reading, one step after another."""
