"""The digests of many runs. Each is kept with its run's report, so that ten thousand are read in seconds.

A kept digest holds while the run's ledger ends where it ended then. One that does not hold, or is of another
version, is made anew from the run's record and kept, where that may be written. What goes on is never kept.
"""

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
from agent2rl.record.files import write_atomically
from agent2rl.record.paths import RunPaths
from agent2rl.report.export import runs_below as runs_below

VERSION = 2
"""Grows when a digest of the same record would come out otherwise."""


class CachedDigest(Record):
    version: int
    ledger_head: str
    """As the run's ledger ended when this was made."""
    digest: RunDigest


@dataclass(frozen=True)
class GatheredDigests:
    digests: tuple[RunDigest, ...]
    unreadable: tuple[str, ...] = ()
    """Runs of which nothing can be said, and why."""


def gather_digests(runs: Sequence[RunPaths], tell: Callable[[int], None] = lambda _: None) -> GatheredDigests:
    """Of all these runs; `tell` hears how many are done."""
    found, unreadable = [], []
    for done, paths in enumerate(runs, 1):
        try:
            found.append(read_digest(paths))
        except (UserError, OSError, ValueError) as error:
            unreadable.append(f"{paths.run_id}: {error}")
        tell(done)
    return GatheredDigests(tuple(found), tuple(unreadable))


def read_digest(paths: RunPaths) -> RunDigest:
    """The kept one, or a new one, which is kept where that may be."""
    if found := read_cached_digest(paths):
        return found
    new = compute_digest(paths)
    with suppress(OSError):  # somebody else's run, or a full disk: it is made again the next time
        paths.report.mkdir(exist_ok=True)
        cache_digest(paths, new, paths.digest)
    return new


def read_cached_digest(paths: RunPaths) -> RunDigest | None:
    """None where there is none that holds."""
    try:
        found = CachedDigest.model_validate_json(paths.digest.read_bytes())
    except (OSError, ValidationError):
        return None
    holds = found.version == VERSION and found.ledger_head == _read_ledger_head(paths)
    return found.digest if holds else None


def compute_digest(paths: RunPaths) -> RunDigest:
    record = read_recorded_run(paths)
    return digest_run(record, analyse_run(record)[0])


def cache_digest(paths: RunPaths, new: RunDigest, target: Path) -> None:
    if new.state != "running":
        text = CachedDigest(version=VERSION, ledger_head=_read_ledger_head(paths), digest=new)
        write_atomically(target, text.model_dump_json() + "\n")


def _read_ledger_head(paths: RunPaths) -> str:
    try:
        return paths.ledger_head.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
