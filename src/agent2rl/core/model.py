"""A base model that ships with the package."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ShippedModel:
    id: str
    engine: str
    """The engine that runs it, as in `--engine`. `transformers` stands for any engine that runs a Hugging
    Face directory: the runner uses `vllm` instead if the machine supports it."""
    write: Callable[[Path], None]
    """Write the model into an empty directory; the same bytes each time."""
    version: str = ""
    """Cache key of what `write` writes, if writing is slow. Empty: it is written each time."""
