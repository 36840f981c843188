"""How far a process is that works for the pages: it writes its step on a line that the server reads."""

import ctypes
import multiprocessing
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from agent2rl.dashboard import bounded

LONGEST = 200
Line: TypeAlias = ctypes.Array[ctypes.c_char]


@dataclass(frozen=True)
class Progress:
    ahead: int
    """Others that are done before it is begun."""
    seconds: float
    """Since it was asked for."""
    number: int = 0
    of: int = 1
    step: str = ""


def line() -> Line:
    """Without a lock, which would stay closed if a process died with it; what is torn is passed over."""
    return multiprocessing.get_context("spawn").RawArray(ctypes.c_char, LONGEST)


def listen(told: Line) -> None:
    """In the process that works, at its start: from here on `tell` writes to it."""
    bounded.prepare_worker()
    global _TOLD
    _TOLD = told


def tell(number: int, of: int, step: str) -> None:
    if _TOLD is not None:
        _TOLD.value = f"{number} {of} {step}".encode()[: LONGEST - 1]


def clear(told: Line) -> None:
    told.value = b""


def read(told: Line, seconds: float) -> Progress:
    number, of, step = 0, 1, ""
    with suppress(ValueError):  # nothing has been told yet
        first, second, step = told.value.decode(errors="replace").split(" ", 2)
        number, of = int(first), int(second)
    return Progress(0, seconds, number, of, step)


_TOLD: Line | None = None
