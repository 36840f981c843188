"""Tracker for MLflow: an experiment for each campaign or task, on the server in MLFLOW_TRACKING_URI.

A run is found again by its tag `agent2rl.run_id`, in any experiment. Points have the times of the run's own
clock. MLflow reads its other settings (user, token, certificates) from the environment itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from agent2rl.core.errors import UserError
from agent2rl.core.tracker import FinalSummary, MetricsRow, RunMirror, Status, TrackedRun, Tracker

RUN_ID = "agent2rl.run_id"
MOST_PARAMS, MOST_TAGS, MOST_METRICS = 100, 100, 1000
"""Limits per request."""
RETRIES, TIMEOUT_SECONDS = 2, 20
"""Used unless the user sets MLflow's own; low, because the follower retries later."""
STATUS: dict[Status, str] = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowMirror:
    def __init__(self, client: Any, entities: Any, mlflow_run: Any) -> None:
        self._client, self._entities = client, entities
        self._id, self._experiment = mlflow_run.info.run_id, mlflow_run.info.experiment_id
        self._sent = {
            (key, point.step)
            for key in mlflow_run.data.metrics
            for point in client.get_metric_history(self._id, key)
        }

    @property
    def where(self) -> str:
        uri = urlsplit(self._client.tracking_uri)
        if not uri.hostname:
            return f"{uri.geturl()}, run {self._id}"
        port = f":{uri.port}" if uri.port else ""
        return f"{uri.scheme}://{uri.hostname}{port}/#/experiments/{self._experiment}/runs/{self._id}"

    def send(self, rows: Sequence[MetricsRow]) -> None:
        points = [
            (name, value, round(1000 * row.at), row.step)
            for row in rows
            for name, value in row.values.items()
            if (name, row.step) not in self._sent
        ]
        for batch in _split_in_batches(points, MOST_METRICS):
            self._client.log_batch(self._id, metrics=[self._entities.Metric(*each) for each in batch])
            self._sent |= {(name, step) for name, _, _, step in batch}

    def finish(self, last: FinalSummary) -> None:
        tags = [self._entities.RunTag(*each) for each in last.tags.items()]
        for batch in _split_in_batches(tags, MOST_TAGS):
            self._client.log_batch(self._id, tags=batch)
        self.send([MetricsRow("end", 0, last.ended_at, last.numbers)])
        for name, path in last.files.items():
            folder = PurePosixPath(name).parent.as_posix()
            self._client.log_artifact(self._id, str(path), None if folder == "." else folder)
        ended = round(1000 * last.ended_at)
        self._client.set_terminated(self._id, STATUS[last.status], ended)


class MlflowTracker:
    needs = "mlflow"

    @contextmanager
    def open(self, run: TrackedRun) -> Iterator[RunMirror]:
        import mlflow
        from mlflow import entities
        from mlflow.environment_variables import (
            MLFLOW_HTTP_REQUEST_MAX_RETRIES,
            MLFLOW_HTTP_REQUEST_TIMEOUT,
        )

        for variable, value in (
            (MLFLOW_HTTP_REQUEST_MAX_RETRIES, RETRIES),
            (MLFLOW_HTTP_REQUEST_TIMEOUT, TIMEOUT_SECONDS),
        ):
            if not variable.is_set():
                variable.set(value)
        _require_openable_store(mlflow.get_tracking_uri())
        client = mlflow.MlflowClient()
        mlflow_run = _find_run(client, run) or _create_run(client, run)
        client.update_run(mlflow_run.info.run_id, status="RUNNING")
        missing = {name: value for name, value in run.config.items() if name not in mlflow_run.data.params}
        for batch in _split_in_batches(list(missing.items()), MOST_PARAMS):
            params = [entities.Param(name, str(value)) for name, value in batch]
            client.log_batch(mlflow_run.info.run_id, params=params)
        yield MlflowMirror(client, entities, mlflow_run)


def _require_openable_store(uri: str) -> None:
    """Raise UserError for a local store if only the MLflow client is installed, which opens no database."""
    remote = uri.startswith(("http://", "https://", "databricks", "uc"))
    if not remote and find_spec("sqlalchemy") is None:
        raise UserError(
            f"The installed MLflow client cannot open the store {urlsplit(uri).scheme or uri}.",
            "Set MLFLOW_TRACKING_URI to a server, or install all of MLflow: pip install mlflow.",
        )


def _find_run(client: Any, run: TrackedRun) -> Any:
    """Find a run in any experiment: it may have been sent as part of a campaign."""
    page = client.search_experiments()
    experiments = list(page)
    while page.token:
        page = client.search_experiments(page_token=page.token)
        experiments += page
    ids = [experiment.experiment_id for experiment in experiments]
    query = f"tags.`{RUN_ID}` = '{run.id}'"
    return next(iter(client.search_runs(ids, query, max_results=1)), None) if ids else None


def _create_run(client: Any, run: TrackedRun) -> Any:
    tags: Mapping[str, str] = {**run.tags, RUN_ID: run.id}
    began = round(1000 * run.began_at)
    return client.create_run(_find_or_create_experiment(client, run.group), began, dict(tags), run.id)


def _find_or_create_experiment(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    if existing := client.get_experiment_by_name(name):
        return str(existing.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException:  # another run of the campaign created it first
        if existing := client.get_experiment_by_name(name):
            return str(existing.experiment_id)
        raise


def _split_in_batches(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (items[begin : begin + most] for begin in range(0, len(items), most))


TRACKER: Tracker = MlflowTracker()
