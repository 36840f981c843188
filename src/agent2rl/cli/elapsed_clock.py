"""The clock of a run's progress lines and of log lines: the time since the command began."""

import time

BEGAN = time.monotonic()


def format_elapsed_time() -> str:
    seconds = int(time.monotonic() - BEGAN)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
