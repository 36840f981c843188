"""What many runs say together: cells, comparisons, ranks, scaling. Pure functions over digests of runs."""
