"""Tracker for Weights & Biases: the project WANDB_PROJECT, or `agent2rl`; a group for each campaign or task.

Online, a run is resumed by its id, and W&B says how many rows it has. Offline (WANDB_MODE=offline), a
directory below ./wandb cannot be resumed: an incomplete one is replaced by a complete one, and is kept next
to it only if it was uploaded.
Only the run itself is sent: no code, no console output and no machine information.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agent2rl.core.tracker import FinalSummary, MetricsRow, RunMirror, TrackedRun, Tracker

PROJECT = "agent2rl"
MARK = "agent2rl.json"
"""File in an offline run's directory that says what was sent: W&B's own format is private."""
LONGEST_TAG = 64
SECONDS = 30.0


class WandbMirror:
    def __init__(self, wandb: Any, run: TrackedRun) -> None:
        self._wandb, self._tracked = wandb, run
        self._settings = wandb.setup().settings
        self._offline = self._settings.mode == "offline"
        self._earlier = _find_offline_runs(Path(self._settings.wandb_dir), run.id) if self._offline else []
        self._held = _read_mark(self._earlier[-1]) if self._earlier else {}
        self._run: Any = None if self._held else self._init_run()
        self._rows = self._run.step if self._run else 0
        self._waiting: Sequence[MetricsRow] = ()
        self._axes: set[str] = set()
        self._finished, self._code = False, 0

    @property
    def where(self) -> str:
        place = self._run.settings.sync_dir if self._run else self._earlier[-1]
        return str(place) if self._offline else str(self._run.url)

    def send(self, rows: Sequence[MetricsRow]) -> None:
        if self._run is None:
            if len(rows) <= self._held.get("rows", 0):
                self._waiting = rows
                return
            self._run = self._init_run()
        for row in rows[self._rows :]:
            self._define_axes(row)
            self._run.log({**row.values, row.axis: row.step})
            self._rows += 1
        self._write_mark({"rows": self._rows})

    def finish(self, last: FinalSummary) -> None:
        summary = _summarize_end(last)
        if self._run is None:
            if self._held == {"rows": len(self._waiting), "last": summary}:
                return
            self._run = self._init_run()
            self.send(self._waiting)
        self._run.summary.update({**last.numbers, "status": last.status})
        self._run.config.update(dict(last.tags), allow_val_change=True)
        if last.files:
            artifact = self._wandb.Artifact(f"run-{self._tracked.id}", type="run")
            for name, path in last.files.items():
                artifact.add_file(str(path), name=name)
            self._run.log_artifact(artifact)
        self._finished, self._code = True, 0 if last.status == "finished" else 1
        self._write_mark({"rows": self._rows, "last": summary})

    def close(self) -> None:
        """Finish the run. Older directories are deleted only if the new one holds as much."""
        if self._run is None:
            return
        self._run.finish(exit_code=self._code)
        complete = self._finished or ("last" not in self._held and self._rows >= self._held.get("rows", 0))
        for folder in self._earlier if complete else ():
            if not any(folder.glob("*.synced")):
                shutil.rmtree(folder)

    def _init_run(self) -> Any:
        run = self._tracked
        return self._wandb.init(
            project=self._settings.project or PROJECT,
            id=run.id,
            name=run.id,
            group=run.group,
            config=dict(run.config) | dict(run.tags),
            tags=[f"{name}:{value}"[:LONGEST_TAG] for name, value in run.tags.items()],
            resume=None if self._offline else "allow",
            settings=self._wandb.Settings(
                silent=True,
                console="off",
                init_timeout=SECONDS,
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )

    def _define_axes(self, row: MetricsRow) -> None:
        """Tell W&B which step metric is the x axis of these values."""
        for name in row.values.keys() - self._axes:
            self._run.define_metric(name, step_metric=row.axis)
            self._axes.add(name)

    def _write_mark(self, content: Mapping[str, Any]) -> None:
        if self._offline:
            (Path(self._run.settings.sync_dir) / MARK).write_text(json.dumps(content), encoding="utf-8")


class WandbTracker:
    needs = "wandb"

    @contextmanager
    def open(self, run: TrackedRun) -> Iterator[RunMirror]:
        import wandb

        mirror = WandbMirror(wandb, run)
        try:
            yield mirror
        finally:
            mirror.close()


def _find_offline_runs(folder: Path, run: str) -> list[Path]:
    """Return the directories of the same run, the oldest first."""
    return [path.parent for path in sorted(folder.glob(f"offline-run-*-{run}/{MARK}"))]


def _read_mark(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        content = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _summarize_end(last: FinalSummary) -> dict[str, Any]:
    sizes = {name: path.stat().st_size for name, path in last.files.items()}
    return {
        "status": last.status,
        "tags": dict(last.tags),
        "numbers": dict(last.numbers),
        "files": sizes,
    }


TRACKER: Tracker = WandbTracker()
