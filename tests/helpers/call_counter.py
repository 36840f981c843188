"""Counts function calls: a measure of work that does not depend on how busy the machine is."""

import sys
from collections.abc import Callable
from types import FrameType


def count_calls(work: Callable[[], object]) -> int:
    """Count the calls of Python and C functions while `work` runs in this thread."""
    calls = 0

    def count_event(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
