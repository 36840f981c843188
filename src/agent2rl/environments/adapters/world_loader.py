"""Finds the world of the run that a program is part of: the workspace's data directory says which it is."""

import importlib
import json
import os
from pathlib import Path

from agent2rl.core.environment import OpenWorld, World
from agent2rl.core.errors import UserError

WORLD_FILE = "world.json"
"""{"world": "module:ATTRIBUTE"}, in the data directory."""


def open_world(data: Path | None = None) -> World:
    """The training games in a data directory; by default that of the run, `$DATA_PATH`."""
    if data is None:
        if "DATA_PATH" not in os.environ:
            raise UserError("There is no run here: DATA_PATH is not set.", "Name the data directory.")
        data = Path(os.environ["DATA_PATH"])
    try:
        address = str(json.loads((data / WORLD_FILE).read_text(encoding="utf-8"))["world"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{data} holds no world to train in: {type(error).__name__}: {error}.") from error
    module, _, attribute = address.partition(":")
    opened: OpenWorld = getattr(importlib.import_module(module), attribute)
    return opened(data)
