"""How far a process is that works for the pages: it writes its step on a line that the server reads."""

import ctypes
import multiprocessing
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from agent2rl.dashboard import bounded_worker

LONGEST_STEP = 200
ProgressLine: TypeAlias = ctypes.Array[ctypes.c_char]


@dataclass(frozen=True)
class WorkProgress:
    ahead: int
    """Others that are done before it is begun."""
    seconds: float
    """Since it was asked for."""
    number: int = 0
    of: int = 1
    step: str = ""


def create_progress_line() -> ProgressLine:
    """Without a lock, which would stay closed if a process died with it; what is torn is passed over."""
    return multiprocessing.get_context("spawn").RawArray(ctypes.c_char, LONGEST_STEP)


def listen_in_worker(told: ProgressLine) -> None:
    """In the process that works, at its start: from here on `report_step` writes to it."""
    bounded_worker.prepare_worker()
    global _TOLD
    _TOLD = told


def report_step(number: int, of: int, step: str) -> None:
    if _TOLD is not None:
        _TOLD.value = f"{number} {of} {step}".encode()[: LONGEST_STEP - 1]


def clear_progress(told: ProgressLine) -> None:
    told.value = b""


def read_progress(told: ProgressLine, seconds: float) -> WorkProgress:
    number, of, step = 0, 1, ""
    with suppress(ValueError):  # nothing has been told yet
        first, second, step = told.value.decode(errors="replace").split(" ", 2)
        number, of = int(first), int(second)
    return WorkProgress(0, seconds, number, of, step)


_TOLD: ProgressLine | None = None
