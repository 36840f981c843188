"""Many runs: a matrix of experiments in a file, who works on which, and where they are run."""
