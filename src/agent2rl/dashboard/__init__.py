"""`agent2rl view`: a web page over a runs directory. Reads run directories and writes to none of them."""
