"""Names that every tracker takes, out of texts that agents had a hand in; and what a failing tracker says."""

import re

from agent2rl.core.errors import Agent2RLError
from agent2rl.store.untrusted_files import sanitize_line

LONGEST = 100
LONGEST_REASON = 400


def sanitize_name(text: str, otherwise: str = "unnamed") -> str:
    """Letters, digits, `.`, `_` and `-`, never `.` or `..`, and no longer than any tracker allows."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._")[:LONGEST].strip("._") or otherwise


def describe_failure(error: Exception) -> str:
    """Why a tracker failed, in one line, without the name and the password that an address in it may hold."""
    told = str(error) if isinstance(error, Agent2RLError) else f"{type(error).__name__}: {error}"
    return _redact_login(sanitize_line(" ".join(told.split()), LONGEST_REASON))


def _redact_login(text: str) -> str:
    return re.sub(r"(?<=://)[^/\s]*@", "***@", text)
