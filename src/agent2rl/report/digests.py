"""The digests of many runs, cached with each run's report, so that ten thousand are read in seconds.

A cached digest is valid as long as the head of the run's ledger is the same. An invalid one, or one of
another version, is computed again from the run's record and cached if the directory is writable. Digests of
runs in progress are never cached. Training curves, which figures of several runs need of a few, are cached
apart: they are larger.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from agent2rl.analysis.analyse import analyse_run
from agent2rl.analysis.campaigns.run_digest import RunDigest, digest_run
from agent2rl.analysis.campaigns.training_sample import thin_trainings
from agent2rl.analysis.findings import TrainingCurves
from agent2rl.analysis.recorded_run import read_recorded_run
from agent2rl.core.base_record import Record
from agent2rl.core.errors import UserError
from agent2rl.record.files import read_regular_file, write_atomically
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import State
from agent2rl.report.export import runs_below as runs_below

logger = logging.getLogger(__name__)

VERSION = 5
"""Increase when the digest of the same record changes."""


class CachedDigest(Record):
    version: int
    ledger_head: str
    """Head of the run's ledger when the digest was computed, and of what was added later, if anything was."""
    digest: RunDigest


TRAININGS_VERSION = 1


class CachedTrainings(Record):
    version: int
    ledger_head: str
    """Head of the run's ledger when the logs were read."""
    trainings: tuple[TrainingCurves, ...]


@dataclass(frozen=True)
class GatheredDigests:
    digests: tuple[RunDigest, ...]
    unreadable: tuple[str, ...] = ()
    """Runs that could not be read, and why."""


def gather_digests(runs: Sequence[RunPaths], tell: Callable[[int], None] = lambda _: None) -> GatheredDigests:
    """Read the digests of all these runs; `tell` is called with the number of runs done."""
    gathered, unreadable = [], []
    for done, paths in enumerate(runs, 1):
        try:
            gathered.append(read_digest(paths))
        except (UserError, OSError, ValueError) as error:
            logger.debug("cannot read run %s", paths.run_id, exc_info=True)
            unreadable.append(f"{paths.run_id}: {error}")
        tell(done)
    return GatheredDigests(tuple(gathered), tuple(unreadable))


def read_digest(paths: RunPaths) -> RunDigest:
    """Return the cached digest, or compute a new one and cache it if possible."""
    if cached := read_cached_digest(paths):
        return cached
    return _analyse_and_cache(paths)[0]


def _analyse_and_cache(paths: RunPaths) -> tuple[RunDigest, tuple[TrainingCurves, ...]]:
    record = read_recorded_run(paths)
    findings = analyse_run(record)[0]
    new = digest_run(record, findings)
    with suppress(OSError):  # not writable, or a full disk: it is computed again the next time
        paths.report.mkdir(exist_ok=True)
        cache_digest(paths, new, paths.digest)
        cache_trainings(paths, new.state, findings.trainings, paths.trainings)
    return new, findings.trainings


def read_cached_digest(paths: RunPaths) -> RunDigest | None:
    """Return the cached digest, or None if it is missing or out of date."""
    try:
        cached = CachedDigest.model_validate_json(read_regular_file(paths.digest))
    except (OSError, ValidationError):
        return None
    valid = cached.version == VERSION and cached.ledger_head == read_ledger_heads(paths)
    return cached.digest if valid else None


def compute_digest(paths: RunPaths) -> RunDigest:
    record = read_recorded_run(paths)
    return digest_run(record, analyse_run(record)[0])


def cache_digest(paths: RunPaths, new: RunDigest, target: Path) -> None:
    if new.state != "running":
        cached = CachedDigest(version=VERSION, ledger_head=read_ledger_heads(paths), digest=new)
        write_atomically(target, cached.model_dump_json() + "\n")


def read_trainings(paths: RunPaths) -> tuple[TrainingCurves, ...]:
    """Return the training curves of a run, as far as a figure of several runs shows them."""
    cached = read_cached_trainings(paths)
    return cached if cached is not None else thin_trainings(_analyse_and_cache(paths)[1])


def find_trainings(runs: Sequence[RunPaths]) -> Callable[[str], Sequence[TrainingCurves]]:
    """Return a function from the id of one of these runs to its training curves; a broken run has none."""
    by_id = {paths.run_id: paths for paths in runs}

    def find(run_id: str) -> Sequence[TrainingCurves]:
        try:
            return read_trainings(by_id[run_id]) if run_id in by_id else ()
        except (UserError, OSError, ValueError):
            logger.debug("cannot read the trainings of %s", run_id, exc_info=True)
            return ()

    return find


def read_cached_trainings(paths: RunPaths) -> tuple[TrainingCurves, ...] | None:
    """Return the cached training curves, or None if they are missing or out of date."""
    try:
        cached = CachedTrainings.model_validate_json(read_regular_file(paths.trainings))
    except (OSError, ValidationError):
        return None
    valid = cached.version == TRAININGS_VERSION and cached.ledger_head == _read_head_file(paths.ledger_head)
    return thin_trainings(cached.trainings) if valid else None


def cache_trainings(paths: RunPaths, state: State, trainings: Sequence[TrainingCurves], target: Path) -> None:
    if state != "running":
        cached = CachedTrainings(
            version=TRAININGS_VERSION,
            ledger_head=_read_head_file(paths.ledger_head),
            trainings=thin_trainings(trainings),
        )
        write_atomically(target, cached.model_dump_json() + "\n")


def read_ledger_heads(paths: RunPaths) -> str:
    """Return what changes whenever the record does: the heads of the ledger and of what was added later."""
    heads = (_read_head_file(paths.ledger_head), _read_head_file(paths.additions_head))
    return " ".join(filter(None, heads))


def _read_head_file(path: Path) -> str:
    try:
        return read_regular_file(path).decode().strip()
    except (OSError, ValueError):
        return ""
