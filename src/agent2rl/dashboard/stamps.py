"""What tells whether a run has changed: the times of the files that its row is made of."""

import json
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
    try:
        entries = list(os.scandir(runs))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        spec, *times = (_time(f"{entry.path}/{name}") for name in _LOOKED_AT)
        if spec is None:
            continue
        going = "ended" if times[1] else str(is_held(RunPaths(Path(entry.path)).lock))
        yield entry.name, Stamp(json.dumps([spec, *times, going]), spec / 1e9)


def _time(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - path objects of ten thousand runs take a second
    except OSError:
        return None


def _looked_at() -> tuple[str, ...]:
    paths = RunPaths(Path("run"))
    return tuple(map(paths.relative, (paths.spec, paths.ledger_head, paths.result, paths.digest)))


_LOOKED_AT = _looked_at()
