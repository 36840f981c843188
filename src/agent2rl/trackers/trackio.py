"""Trackio: the store of this machine, in the project `agent2rl`; `trackio show` opens it.

Only the local store: what it holds can be read back before something is added to it. `trackio sync` brings it
to a Space or a server.
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
        """The configuration is kept with the first row after a beginning: for the ending it begins again."""
        self._run.finish()
        self._run = self._init_run({**self._tracked.tags, **last.tags, "status": last.status})
        self.send([MetricsRow("end", 0, last.ended_at, last.numbers)])
        artifact = self._trackio.Artifact(name=self._tracked.id, type=ARTIFACT)
        for name, path in last.files.items():
            artifact.add_file(str(path), name=name)
        if last.files:
            self._run.log_artifact(artifact)

    def close(self) -> None:
        """Writing is the work of a thread that tells nobody when it fails: so what is there is read again."""
        self._run.finish()
        if lost := self._sent - self._read_stored_points():
            raise OSError(f"Trackio's store lacks {len(lost)} points that it was given")

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
                "Trackio is set to log to a Space or a server, and runs are mirrored to its local store.",
                "Unset TRACKIO_SPACE_ID and TRACKIO_SERVER_URL; `trackio sync` brings the store there.",
            )
        mirror = TrackioMirror(trackio, run)
        try:
            yield mirror
        finally:
            mirror.close()


TRACKER: Tracker = TrackioTracker()
