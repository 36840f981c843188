"""Run jobs on a Ray cluster, one task per job. Ray decides where and when.

Ray notices when a worker dies and retries its task, which takes over the claim of the dead worker. Workers
normally share the runs directory. If they do not (`fetch`), each run comes back through Ray's object store as
an archive in pieces, and this process holds the claims.
"""

import importlib
import logging
import socket
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from agent2rl.campaign.campaign_file import RunResources
from agent2rl.campaign.claims_and_sessions import ExperimentClaims, HeldClaim
from agent2rl.campaign.experiment_status import RunHistory
from agent2rl.campaign.jobs import (
    CampaignJob,
    EndedJob,
    JobOutcome,
    JobWorker,
    MachineShare,
    find_other_outcome,
)
from agent2rl.core.errors import ExternalServiceError, MachineError
from agent2rl.record.files import extract_archive, remove_tree
from agent2rl.record.paths import RunPaths, claims_folder
from agent2rl.report import export

logger = logging.getLogger(__name__)

RETRIES = 5
"""How often a job is retried if its worker dies."""
ANSWER_SECONDS = 10.0
PIECE_BYTES = 32 << 20
PIECES = 4
"""Limit for pieces that wait in the object store at the same time."""


class RayExecutor:
    def __init__(self, ray: Any, resources: RunResources, parallel: int | None, fetch: bool) -> None:
        self._ray, self._parallel, self._fetch = ray, parallel, fetch
        self._task = ray.remote(_run_and_send_back if fetch else _run_on_shared_storage).options(
            num_cpus=resources.cpus or 1,
            num_gpus=resources.gpus,
            memory=resources.memory_bytes,
            max_retries=RETRIES,
            num_returns="streaming",
            _generator_backpressure_num_objects=PIECES,
        )
        self._queue: list[CampaignJob] = []
        self._under_way: dict[Any, tuple[CampaignJob, HeldClaim | None]] = {}
        self._ended: list[EndedJob] = []

    def submit(self, jobs: Sequence[CampaignJob]) -> None:
        self._queue += jobs
        self._start_queued_jobs()

    def ended(self, seconds: float) -> list[EndedJob]:
        deadline = time.monotonic() + seconds
        self._start_queued_jobs()
        while not self._ended and (remaining := deadline - time.monotonic()) > 0:
            if not self._under_way:
                time.sleep(remaining)
                break
            ready, _ = self._ray.wait(list(self._under_way), num_returns=1, timeout=remaining)
            for answer in ready:
                self._ended.append(self._collect_outcome(answer))
        self._renew_claims()
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        self._ended += [EndedJob(job, JobOutcome(kind="stopped")) for job in self._queue]
        self._queue = []
        for answer in self._under_way if self._fetch else ():
            self._ray.cancel(answer)

    def close(self) -> None:
        for answer, (_, held) in self._under_way.items():
            with suppress(Exception):
                self._ray.cancel(answer, force=False)
            if held:
                held.release()

    def _start_queued_jobs(self) -> None:
        while self._queue and (self._parallel is None or len(self._under_way) < self._parallel):
            job, held = self._queue.pop(0), None
            if self._fetch:
                held = ExperimentClaims(claims_folder(Path(job.runs))).claim_experiment(
                    job.experiment, Path(job.session).name
                )
                outcome = (
                    find_other_outcome(job, RunHistory(Path(job.runs)).list_experiment_runs(job.experiment))
                    if held
                    else JobOutcome(kind="busy")
                )
                if outcome:
                    self._ended.append(EndedJob(job, outcome))
                    if held:
                        held.release()
                    continue
            self._under_way[self._task.remote(job.model_dump_json())] = job, held

    def _renew_claims(self) -> None:
        for answer, (_, held) in self._under_way.items():
            if held and not held.renew_claim():
                self._ray.cancel(answer)

    def _fetch_piece(self, piece: Any) -> Any:
        self._renew_claims()  # fetching a large run takes long
        return self._ray.get(piece)

    def _collect_outcome(self, answer: Any) -> EndedJob:
        job, held = self._under_way.pop(answer)
        pieces = (self._fetch_piece(piece) for piece in answer)
        try:
            outcome = JobOutcome.model_validate_json(next(pieces))
            if self._fetch and outcome.run_id:
                _unpack_run(pieces, outcome.run_id, Path(job.runs))
        except self._ray.exceptions.TaskCancelledError:
            outcome = JobOutcome(kind="stopped")
        except (self._ray.exceptions.RayError, tarfile.TarError, OSError) as error:
            logger.debug("The Ray task of %s failed", job.label, exc_info=True)
            outcome = JobOutcome(kind="broken", message=f"{type(error).__name__}: {str(error).strip()[:300]}")
        finally:
            if held:
                held.release()
        return EndedJob(job, outcome)


def _run_on_shared_storage(text: str) -> Iterator[str | bytes]:
    """Run a job on a worker that shares the runs directory."""
    yield JobWorker(CampaignJob.model_validate_json(text), _get_worker_share()).run().model_dump_json()


def _run_and_send_back(text: str) -> Iterator[str | bytes]:
    """Run a job on a worker that does not: yield the outcome, then the pieces of the run directory."""
    directory = Path(tempfile.mkdtemp(prefix="agent2rl-"))
    try:
        runs, session = directory / "runs", directory / "session"
        # This worker has a runs directory of its own, in which nothing has been finished yet.
        local_paths = {"runs": str(runs), "session": str(session), "settled": 0}
        outcome = JobWorker(
            CampaignJob.model_validate_json(text).model_copy(update=local_paths), _get_worker_share()
        ).run()
        yield outcome.model_dump_json()
        if outcome.run_id:
            yield from _pack_run(runs / outcome.run_id, directory / "run.tar")
    finally:
        remove_tree(directory)


def _get_worker_share() -> MachineShare:
    ray = importlib.import_module("ray")
    return MachineShare(gpus=tuple(str(gpu) for gpu in ray.get_gpu_ids()))


def _pack_run(run: Path, archive: Path) -> Iterator[bytes]:
    with tarfile.open(archive, "w") as tar:
        tar.add(run, arcname=run.name)
    with archive.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


class _PieceReader:
    """File object that reads an iterator of byte strings once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _unpack_run(pieces: Iterator[bytes], run_id: str, runs: Path) -> None:
    """Unpack a run completely or not at all. Keeps the agent's links; writes nothing outside `runs`."""
    directory = Path(tempfile.mkdtemp(prefix=".fetching-", dir=runs))
    try:
        with tarfile.open(fileobj=cast(IO[bytes], _PieceReader(pieces)), mode="r|") as tar:
            extract_archive(tar, directory)
        (directory / run_id).rename(runs / run_id)
    finally:
        remove_tree(directory)
    export.update_results_csv(RunPaths(runs / run_id))


def _require_reachable(address: str) -> None:
    """Raise ExternalServiceError if nothing listens at the address. Ray itself would try for 15 minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # `auto`, or another form that Ray knows
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise ExternalServiceError(
            f"No Ray cluster answers at {address}: {error.strerror or error}.", "Start one: ray start --head."
        ) from error


@contextmanager
def open_ray_executor(
    resources: RunResources, parallel: int | None, address: str | None, fetch: bool
) -> Iterator[RayExecutor]:
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise MachineError("Ray is not installed.", "Install it: pip install 'agent2rl[ray]'.") from error
    if address:
        _require_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ExternalServiceError(
            f"Ray does not answer: {error}.", "Choose a running cluster: --address HOST:PORT."
        ) from error
    cluster = RayExecutor(ray, resources, parallel, fetch)
    try:
        yield cluster
    finally:
        cluster.close()
        ray.shutdown()
