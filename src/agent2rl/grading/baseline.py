"""Grade the untouched model, cached by content: the same model, data, evaluator and engine run once.

A cached baseline has an HMAC. Its key is stored in the cache and readable only by its owner, so that entries
which somebody else edited or added are not used. The owner of the cache also owns the key.
"""

import hmac
import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent2rl import __version__
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import EvalResult, Split
from agent2rl.core.records import Record
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.grading_child import GradingChild
from agent2rl.record.files import canonical_json, sha256_text, write_record
from agent2rl.record.signing_key import ensure_signing_key, read_signing_key

logger = logging.getLogger(__name__)

NOT_USED = (
    "A cached baseline was not used, because its signature is wrong: it was changed, or written by another "
    "user or an older version. The baseline is graded again."
)


class Measurement(Record):
    """Which run graded the untouched model, and when."""

    run_id: str
    at: float
    """Seconds since the epoch."""


class CachedBaseline(Record):
    results: EvalResult
    measured: Measurement
    digest: str
    """HMAC-SHA256 over the name of the entry and its other fields."""


@dataclass(frozen=True)
class GradedBaseline:
    results: EvalResult
    measured: Measurement
    warning: str | None = None
    """Why a cached baseline was not used, if there was one."""


class BaselineCache:
    """Signed baselines: FOLDER/NAME.json has one baseline, FOLDER/key the key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key_file = folder / "key"

    def has_entry(self, name: str) -> bool:
        """Return whether there is an entry, valid or not."""
        return self._entry_path(name).exists()

    def load(self, name: str) -> CachedBaseline | None:
        """Return the entry with this name if this user's key signed it, else None."""
        key = read_signing_key(self._key_file)
        try:
            entry = CachedBaseline.model_validate_json(self._entry_path(name).read_bytes())
            fits = key and hmac.compare_digest(
                entry.digest, _sign_entry(key, name, entry.results, entry.measured)
            )
        except (OSError, ValueError):  # missing or damaged
            return None
        return entry if fits else None

    def store(self, name: str, results: EvalResult, measured: Measurement) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ensure_signing_key(self._key_file)
        digest = _sign_entry(key, name, results, measured)
        write_record(
            self._entry_path(name), CachedBaseline(results=results, measured=measured, digest=digest)
        )

    def _entry_path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _sign_entry(key: bytes, name: str, results: EvalResult, measured: Measurement) -> str:
    content = {
        "name": name,
        "results": results.model_dump(mode="json"),
        "measured": measured.model_dump(mode="json"),
    }
    return hmac.digest(key, canonical_json(content).encode(), "sha256").hex()


@dataclass(frozen=True)
class BaselineGrader:
    child: GradingChild
    base: BaseModel
    evaluator_version: str
    cache: Path | None
    """None if results must not be reused: the search results may change or must be recorded."""

    def cache_key(self, split: Split) -> str:
        """Return the cache key. It covers the whole model directory, because all its files affect answers."""
        return sha256_text(
            canonical_json(
                {
                    "model": self.base.manifest.sha256,
                    "task": self.child.task,
                    "data": self.child.splits[split].sha256,
                    "beside": {name: folder.sha256 for name, folder in self.child.evaluator_folders.items()},
                    "evaluator": self.evaluator_version,
                    "offer": self.child.proxy_description,
                    "engine": self.child.engine,
                    "agent2rl": __version__,
                    "settings": self.child.settings.model_dump(),
                }
            )
        )

    def grade_split(
        self, split: Split, log: Path, scratch: Path, stop: threading.Event, run_id: str
    ) -> GradedBaseline:
        """Return the baseline from the cache, or measure it. A failed baseline is an error, never a zero."""
        cache, key = BaselineCache(self.cache) if self.cache else None, self.cache_key(split)
        if cache and (cached := cache.load(key)):
            logger.debug("Baseline (%s): in the cache from run %s", split, cached.measured.run_id)
            return GradedBaseline(cached.results, cached.measured)
        warning = NOT_USED if cache and cache.has_entry(key) else None
        try:
            evaluation = self.child.grade_model(self.base.directory, split, log, scratch, stop)
        except GradingError as error:
            raise GradingError(
                f"The untouched model could not be graded: {error.message}", error.hint
            ) from error
        measured = Measurement(run_id=run_id, at=time.time())
        with suppress(OSError, ValueError):  # an unwritable cache must not fail the run
            if cache:
                cache.store(key, evaluation, measured)
        return GradedBaseline(evaluation, measured, warning)
