"""Agent² RL-Bench: can an LLM agent engineer the RL post-training of another model?

In a notebook: `agent2rl.load_runs`, `agent2rl.compare`. They are loaded when they are first used, so that
`import agent2rl` and the command line stay light; `__init__.pyi` has their types.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

NOTEBOOK = "agent2rl.notebook"
NOTEBOOK_NAMES = ("compare", "load_runs")


def __getattr__(name: str) -> Any:
    if name in NOTEBOOK_NAMES:
        return getattr(importlib.import_module(NOTEBOOK), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *NOTEBOOK_NAMES])
