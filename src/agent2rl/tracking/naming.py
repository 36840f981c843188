"""Names that every tracker takes, out of texts that an agent may have had a hand in."""

import re

LONGEST = 100


def plain_name(text: str, otherwise: str = "unnamed") -> str:
    """Letters, digits, `.`, `_` and `-`, never `.` or `..`, and no longer than any tracker allows."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._")[:LONGEST].strip("._") or otherwise


def without_login(text: str) -> str:
    """A text without the name and the password that an address in it may hold."""
    return re.sub(r"(?<=://)[^/\s@]+@", "***@", text)
