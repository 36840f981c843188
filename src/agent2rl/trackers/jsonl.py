"""Files of a folder, for your own programs: FOLDER/RUN.jsonl, one JSON object a line, and RUN/ beside it.

{"run": …}     once: id, group, configuration, tags
{"row": …}     one for each submission with a verdict, and for each point of a curve
{"last": …}    the end: status, tags, numbers; of several the last one counts
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent2rl.core.tracker import FinalSummary, MetricsRow, RunMirror, TrackedRun, Tracker


class JsonlMirror:
    def __init__(self, path: Path, run: TrackedRun) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in path.read_bytes().split(b"\n")[:-1] if line] if path.exists() else []
        said = [json.loads(line) for line in kept]
        rows = [each["row"] for each in said if "row" in each]
        self._sent = {(name, row["step"]) for row in rows for name in row["values"]}
        self._last = next((each["last"] for each in reversed(said) if "last" in each), None)
        if said:
            path.write_bytes(b"".join(line + b"\n" for line in kept))  # without a line that a crash cut off
        else:
            self._append_line({"run": asdict(run)})

    @property
    def where(self) -> str:
        return str(self._path)

    def send(self, rows: Sequence[MetricsRow]) -> None:
        for row in rows:
            new = {name: value for name, value in row.values.items() if (name, row.step) not in self._sent}
            if new:
                self._append_line({"row": asdict(row) | {"values": new}})
                self._sent |= {(name, row.step) for name in new}

    def finish(self, last: FinalSummary) -> None:
        for name, path in last.files.items():
            target = self._path.with_suffix("") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        said = {
            "status": last.status,
            "ended_at": last.ended_at,
            "tags": {**last.tags},
            "numbers": {**last.numbers},
            "files": sorted(last.files),
        }
        if said != self._last:
            self._append_line({"last": said})
            self._last = said

    def _append_line(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class JsonlTracker:
    path: Path

    @property
    def needs(self) -> str | None:
        return None

    @contextmanager
    def open(self, run: TrackedRun) -> Iterator[RunMirror]:
        yield JsonlMirror(self.path / f"{run.id}.jsonl", run)


def parse(argument: str) -> Tracker:
    return JsonlTracker(Path(argument))
