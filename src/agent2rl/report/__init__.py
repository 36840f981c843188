"""Tables and pages made from a run directory alone."""
