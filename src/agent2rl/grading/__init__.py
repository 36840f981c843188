"""The grading service: freeze, check, grade in a child process, record, answer."""
