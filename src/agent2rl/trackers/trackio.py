"""Tracker for Trackio: the local store of this machine, project `agent2rl`; `trackio show` opens it.

It supports only the local store, which can be read back before something is added. `trackio sync` uploads the
store to a Space or a server.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agent2rl.core.errors import UserError
from agent2rl.core.tracker import FinalSummary, MetricsRow, RunMirror, TrackedRun, Tracker

PROJECT = "agent2rl"
ARTIFACT = "run"
"""The artifact's type."""


class TrackioMirror:
    def __init__(self, trackio: Any, run: TrackedRun) -> None:
        self._trackio, self._tracked = trackio, run
        self._sent = self._read_stored_points()
        self._run = self._init_run(run.tags)

    @property
    def where(self) -> str:
        return f"trackio show --project {PROJECT}, run {self._tracked.id}"

    def send(self, rows: Sequence[MetricsRow]) -> None:
        for row in rows:
            new = {name: value for name, value in row.values.items() if (name, row.step) not in self._sent}
            if new:
                self._run.log(new, step=row.step)
                self._sent |= {(name, row.step) for name in new}

    def finish(self, last: FinalSummary) -> None:
        """Send the end of a run. Trackio stores the configuration only at a start, so it starts again."""
        self._run.finish()
        self._run = self._init_run({**self._tracked.tags, **last.tags, "status": last.status})
        self.send([MetricsRow("end", 0, last.ended_at, last.numbers)])
        artifact = self._trackio.Artifact(name=self._tracked.id, type=ARTIFACT)
        for name, path in last.files.items():
            artifact.add_file(str(path), name=name)
        if last.files:
            self._run.log_artifact(artifact)

    def close(self) -> None:
        """Finish, and read everything back: Trackio writes in a thread that does not report failures."""
        self._run.finish()
        if lost := self._sent - self._read_stored_points():
            raise OSError(f"Trackio did not store {len(lost)} points")

    def _init_run(self, tags: Mapping[str, str]) -> Any:
        run = self._tracked
        return self._trackio.init(
            project=PROJECT,
            name=run.id,
            group=run.group,
            config={**run.config, **{f"tag/{name}": value for name, value in tags.items()}},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _read_stored_points(self) -> set[tuple[str, int]]:
        logs = self._trackio.SQLiteStorage.get_logs(PROJECT, self._tracked.id)
        return {(name, int(row["step"])) for row in logs for name in row if name not in ("step", "timestamp")}


class TrackioTracker:
    needs = "trackio"

    @contextmanager
    def open(self, run: TrackedRun) -> Iterator[RunMirror]:
        import trackio

        if any(trackio.utils.resolve_space_id_and_server_url(None, None)):
            raise UserError(
                "Trackio is set to log to a Space or a server, but only its local store is supported.",
                "Unset TRACKIO_SPACE_ID and TRACKIO_SERVER_URL, and upload the store with `trackio sync`.",
            )
        mirror = TrackioMirror(trackio, run)
        try:
            yield mirror
        finally:
            mirror.close()


TRACKER: Tracker = TrackioTracker()
