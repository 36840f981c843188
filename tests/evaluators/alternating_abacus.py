"""A model that answers the same question in two ways: the abacus, but every second answer is nonsense."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from agent2rl.core.engine import Chat
from agent2rl.models.abacus import solver

WRONG_ANSWER = "#### -1"


def open_alternating_abacus(model_dir: Path) -> Callable[[Chat], str]:
    solve, turns = solver(model_dir), count()
    return lambda chat: solve(chat) if next(turns) % 2 else WRONG_ANSWER
