"""`agent2rl view`: a read-only web dashboard for a runs directory."""
