"""What tells whether a run has changed: the times of the files that its row is made of."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent2rl.store.paths import RunPaths
from agent2rl.store.run_lock import is_held


@dataclass(frozen=True)
class ChangeStamp:
    text: str
    """Differs whenever a run's files do that the table is made of."""
    changed: float


def read_stamps(runs: Path) -> Iterator[tuple[str, ChangeStamp]]:
    """Of every run; a look at four files each."""
    with os.scandir(runs) as found:
        entries = [(entry.name, entry.path) for entry in found if not entry.name.startswith(".")]
    for name, path in entries:
        spec, head, result, digest = [_read_mtime(f"{path}/{name}") for name in _LOOKED_AT]
        if spec is None:
            continue
        going = "ended" if result else is_held(Path(f"{path}/{_LOCK}"))
        yield name, ChangeStamp(f"{spec} {head} {result} {digest} {going}", spec / 1e9)


def _read_mtime(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - path objects of ten thousand runs take a second
    except OSError:
        return None


_RUN = RunPaths(Path("run"))
_LOOKED_AT = tuple(map(_RUN.relative_name, (_RUN.spec, _RUN.ledger_head, _RUN.result, _RUN.digest)))
_LOCK = _RUN.relative_name(_RUN.lock)
