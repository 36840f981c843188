"""transformers, without two things that every grading would wait for and no language model needs.

It imports scipy, where that is installed, for the losses of object detection; and `transformers.models` reads
the source of every model to list what is in it, which `transformers` has done a moment before. To be imported
before anything else imports transformers; later, nothing is changed.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

MODELS = "transformers.models"


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let a package that nobody has imported yet look as if it were not installed."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # what Python itself takes for "not there"
    try:
        yield
    finally:
        del sys.modules[name]


def plain_models() -> None:
    """Put a package in place of `transformers.models` that looks for what is asked of it when it is asked."""
    spec = importlib.util.find_spec(MODELS)
    if spec is not None and MODELS not in sys.modules:
        package = importlib.util.module_from_spec(spec)
        package.__dict__["__getattr__"] = _model
        sys.modules[MODELS] = package


def _model(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return import_module(f"{MODELS}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{MODELS}.{name}":
            raise
    return getattr(import_module("transformers"), name)


if "transformers" not in sys.modules:
    with hidden("scipy"):
        import_module("transformers.utils").is_scipy_available()  # which remembers the answer
    plain_models()

from transformers import AutoTokenizer, PreTrainedTokenizerBase  # noqa: E402

__all__ = ["AutoTokenizer", "PreTrainedTokenizerBase"]
