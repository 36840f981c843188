"""Weights & Biases: the project WANDB_PROJECT, or `agent2rl`; a group for each campaign or task.

Online, a run is taken up by its id, and W&B says how many rows it has. Offline (WANDB_MODE=offline), a
directory below ./wandb cannot be taken up: one that lacks something is replaced by a whole one, and stays
beside it only where it was uploaded.
Beside the run itself nothing is told: neither code, nor console, nor this machine.
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
"""In an offline run's directory: what it holds, which W&B itself keeps in a form that it alone reads."""
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
        told = _summarize_end(last)
        if self._run is None:
            if self._held == {"rows": len(self._waiting), "last": told}:
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
        self._write_mark({"rows": self._rows, "last": told})

    def close(self) -> None:
        """An older directory goes only when the new one holds as much."""
        if self._run is None:
            return
        self._run.finish(exit_code=self._code)
        whole = self._finished or ("last" not in self._held and self._rows >= self._held.get("rows", 0))
        for folder in self._earlier if whole else ():
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
        """Draw these numbers over what their own step counts."""
        for name in row.values.keys() - self._axes:
            self._run.define_metric(name, step_metric=row.axis)
            self._axes.add(name)

    def _write_mark(self, said: Mapping[str, Any]) -> None:
        if self._offline:
            (Path(self._run.settings.sync_dir) / MARK).write_text(json.dumps(said), encoding="utf-8")


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
    """Directories of the same run, the oldest first."""
    return [path.parent for path in sorted(folder.glob(f"offline-run-*-{run}/{MARK}"))]


def _read_mark(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
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
