"""The pages and figures of a report."""
