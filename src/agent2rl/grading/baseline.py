"""The untouched model's score, cached by content: the same model, data, evaluator and engine run once."""

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from agent2rl import __version__
from agent2rl.core.errors import GradingError
from agent2rl.core.records import EvalResult, Split
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.child import Child
from agent2rl.store.files import canonical, sha256_text, write_record


@dataclass(frozen=True)
class Baseline:
    child: Child
    base: BaseModel
    evaluator_version: str
    cache: Path | None
    """None where nothing may be used again: what is searched changes, or is to be recorded."""

    def key(self, split: Split) -> str:
        """The whole model directory counts: a tokenizer or template changes answers as weights do."""
        return sha256_text(
            canonical(
                {
                    "model": self.base.manifest.sha256,
                    "task": self.child.task,
                    "data": self.child.splits[split].sha256,
                    "beside": {name: folder.sha256 for name, folder in self.child.beside.items()},
                    "evaluator": self.evaluator_version,
                    "offer": self.child.offer,
                    "engine": self.child.engine,
                    "agent2rl": __version__,
                    "settings": self.child.settings.model_dump(),
                }
            )
        )

    def grade(self, split: Split, log: Path, scratch: Path, stop: threading.Event) -> tuple[EvalResult, bool]:
        """Results and whether they came from the cache. A baseline that fails is an error, never a zero."""
        kept = self.cache / f"{self.key(split)}.json" if self.cache else None
        with suppress(OSError, ValidationError):  # not there, or not what it was: grade it anew
            if kept:
                return EvalResult.model_validate_json(kept.read_bytes()), True
        try:
            evaluation = self.child.grade(self.base.directory, split, log, scratch, stop)
        except GradingError as error:
            raise GradingError(
                f"The untouched model could not be graded: {error.message}", error.mend
            ) from error
        with suppress(OSError):  # a cache that cannot be written costs time, not the run
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_record(kept, evaluation)
        return evaluation, False
