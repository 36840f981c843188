"""Where an evaluator finds what lies beside the examples: data too large to travel with each of them.

A task names such folders in `Splits.beside`. A grading child sees them, read-only; the agent never does.
"""

import os
from pathlib import Path

from agent2rl.core.errors import GradingError

PLACE = "beside"
"""Where the child sees the folders, in its workspace."""
VARIABLE = "AGENT2RL_BESIDE"
"""Names that place to whoever grades."""


def beside(name: str) -> Path:
    """The folder of this name. A relative place is one below the current directory."""
    place = os.environ.get(VARIABLE)
    if not place:
        raise GradingError(f"There is no folder {name!r} here: only a grading has what lies beside examples.")
    found = Path(place).absolute() / name
    if not found.is_dir():
        raise GradingError(f"The task's data has no folder {name!r}.")
    return found
