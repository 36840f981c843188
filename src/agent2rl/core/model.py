"""A base model that ships with the package."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ShippedModel:
    id: str
    engine: str
    """The engine that runs it, as `--engine` would name it. `transformers` stands for any that runs a Hugging
    Face directory: the runner takes `vllm` in its place where the machine can."""
    write: Callable[[Path], None]
    """Write the model into an empty directory; the same bytes each time."""
    version: str = ""
    """Names what `write` writes, where that takes long and is done once. Empty: it is written each time."""
