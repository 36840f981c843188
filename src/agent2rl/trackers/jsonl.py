"""Tracker that writes to a folder, for your own programs: FOLDER/RUN.jsonl, and files in FOLDER/RUN/.

Each line is a JSON object:

{"run": …}     once: id, group, configuration, tags
{"row": …}     for each submission with a verdict, and for each point of a curve
{"last": …}    the end: status, tags, numbers; if there are several, the last one counts
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
        lines = [line for line in path.read_bytes().split(b"\n")[:-1] if line] if path.exists() else []
        entries = [json.loads(line) for line in lines]
        rows = [entry["row"] for entry in entries if "row" in entry]
        self._sent = {(name, row["step"]) for row in rows for name in row["values"]}
        self._last = next((entry["last"] for entry in reversed(entries) if "last" in entry), None)
        if entries:
            path.write_bytes(b"".join(line + b"\n" for line in lines))  # drops a line that a crash cut off
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
        summary = {
            "status": last.status,
            "ended_at": last.ended_at,
            "tags": {**last.tags},
            "numbers": {**last.numbers},
            "files": sorted(last.files),
        }
        if summary != self._last:
            self._append_line({"last": summary})
            self._last = summary

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
