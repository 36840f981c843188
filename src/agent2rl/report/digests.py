"""The digests of many runs, cached with each run's report, so that ten thousand are read in seconds.

A cached digest is valid as long as the head of the run's ledger is the same. An invalid one, or one of
another version, is computed again from the run's record and cached if the directory is writable. Digests of
runs in progress are never cached.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from agent2rl.analysis.analyse import analyse_run
from agent2rl.analysis.campaigns.run_digest import RunDigest, digest_run
from agent2rl.analysis.recorded_run import read_recorded_run
from agent2rl.core.errors import UserError
from agent2rl.core.record import Record
from agent2rl.record.files import read_regular_file, write_atomically
from agent2rl.record.paths import RunPaths
from agent2rl.report.export import runs_below as runs_below

logger = logging.getLogger(__name__)

VERSION = 5
"""Increase when the digest of the same record changes."""


class CachedDigest(Record):
    version: int
    ledger_head: str
    """Head of the run's ledger when the digest was computed, and of what was added later, if anything was."""
    digest: RunDigest


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
    new = compute_digest(paths)
    with suppress(OSError):  # not writable, or a full disk: it is computed again the next time
        paths.report.mkdir(exist_ok=True)
        cache_digest(paths, new, paths.digest)
    return new


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


def read_ledger_heads(paths: RunPaths) -> str:
    """Return what changes whenever the record does: the heads of the ledger and of what was added later."""
    heads = (_read_head_file(paths.ledger_head), _read_head_file(paths.additions_head))
    return " ".join(filter(None, heads))


def _read_head_file(path: Path) -> str:
    try:
        return read_regular_file(path).decode().strip()
    except (OSError, ValueError):
        return ""
