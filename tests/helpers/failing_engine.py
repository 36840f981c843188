"""An engine that does not start, and prints why."""

from pathlib import Path

from agent2rl.core.engine import Engine
from agent2rl.core.errors import EngineFailure


def open_engine(_: Path) -> Engine:
    print("head size 8 is not supported", flush=True)
    try:
        raise RuntimeError("no attention backend")
    except RuntimeError as error:
        raise EngineFailure("The engine does not start.") from error
