"""Where an evaluator finds what lies beside the examples: data too large to travel with each of them.

A task names such folders in `Splits.beside`. A grading child sees them, read-only; the agent never does.
"""

import os
from pathlib import Path

from agent2rl.core.errors import GradingError

MOUNT_NAME = "beside"
"""Where the child sees the folders, in its workspace."""
FOLDER_VARIABLE = "AGENT2RL_BESIDE"
"""Names that place to whoever grades."""


def require_evaluator_folder(name: str) -> Path:
    """The folder of this name. A relative place is one below the current directory."""
    if not os.environ.get(FOLDER_VARIABLE):
        raise GradingError(f"There is no folder {name!r} here: only a grading has what lies beside examples.")
    found = find_evaluator_folder(name)
    if found is None:
        raise GradingError(f"The task's data has no folder {name!r}.")
    return found


def find_evaluator_folder(name: str) -> Path | None:
    """The same; None where there is no such folder."""
    place = os.environ.get(FOLDER_VARIABLE)
    found = Path(place).absolute() / name if place else None
    return found if found and found.is_dir() else None
