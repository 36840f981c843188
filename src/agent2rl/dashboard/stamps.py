"""What tells whether a run has changed: the times of the files that its row is made of."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent2rl.store.hold import is_held
from agent2rl.store.paths import RunPaths


@dataclass(frozen=True)
class Stamp:
    text: str
    """Differs whenever a run's files do that the table is made of."""
    changed: float


def stamps(runs: Path) -> Iterator[tuple[str, Stamp]]:
    """Of every run; a look at four files each."""
    with os.scandir(runs) as found:
        entries = [(entry.name, entry.path) for entry in found if not entry.name.startswith(".")]
    for name, path in entries:
        spec, head, result, digest = [_time(f"{path}/{name}") for name in _LOOKED_AT]
        if spec is None:
            continue
        going = "ended" if result else is_held(Path(f"{path}/{_LOCK}"))
        yield name, Stamp(f"{spec} {head} {result} {digest} {going}", spec / 1e9)


def _time(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - path objects of ten thousand runs take a second
    except OSError:
        return None


_RUN = RunPaths(Path("run"))
_LOOKED_AT = tuple(map(_RUN.relative, (_RUN.spec, _RUN.ledger_head, _RUN.result, _RUN.digest)))
_LOCK = _RUN.relative(_RUN.lock)
