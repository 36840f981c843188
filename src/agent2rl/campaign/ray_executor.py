"""Runs jobs on a Ray cluster, one task each. Ray decides where and when.

A worker that dies is Ray's to notice: its task is done again, and takes over the claim that the dead worker
left. Workers see the runs directory, or (`fetch`) do not: then each run comes back through Ray's object
store as an archive, in pieces, and it is this process that holds the claims.
"""

import importlib
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
from agent2rl.core.errors import MachineError, WorldError
from agent2rl.record.files import remove_tree
from agent2rl.record.paths import RunPaths, claims_folder
from agent2rl.report import export

RETRIES = 5
"""How often a job is done again whose worker died."""
ANSWER_SECONDS = 10.0
PIECE_BYTES = 32 << 20
PIECES = 4
"""That wait in the object store at once."""


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
        until = time.monotonic() + seconds
        self._start_queued_jobs()
        while not self._ended and (left := until - time.monotonic()) > 0:
            if not self._under_way:
                time.sleep(left)
                break
            ready, _ = self._ray.wait(list(self._under_way), num_returns=1, timeout=left)
            for answer in ready:
                self._ended.append(self._collect_outcome(answer))
        self._renew_claims()
        found, self._ended = self._ended, []
        return found

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
                no = (
                    find_other_outcome(job, RunHistory(Path(job.runs)).list_experiment_runs(job.experiment))
                    if held
                    else JobOutcome(kind="busy")
                )
                if no:
                    self._ended.append(EndedJob(job, no))
                    if held:
                        held.release()
                    continue
            self._under_way[self._task.remote(job.model_dump_json())] = job, held

    def _renew_claims(self) -> None:
        for answer, (_, held) in self._under_way.items():
            if held and not held.renew_claim():
                self._ray.cancel(answer)

    def _fetch_piece(self, piece: Any) -> Any:
        self._renew_claims()  # a large run takes its time
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
            outcome = JobOutcome(kind="broken", message=f"{type(error).__name__}: {str(error).strip()[:300]}")
        finally:
            if held:
                held.release()
        return EndedJob(job, outcome)


def _run_on_shared_storage(text: str) -> Iterator[str | bytes]:
    """On a worker that sees the runs directory."""
    yield JobWorker(CampaignJob.model_validate_json(text), _get_worker_share()).run().model_dump_json()


def _run_and_send_back(text: str) -> Iterator[str | bytes]:
    """On a worker that does not: the outcome, then the run's directory."""
    place = Path(tempfile.mkdtemp(prefix="agent2rl-"))
    try:
        runs, session = place / "runs", place / "session"
        here = {"runs": str(runs), "session": str(session), "settled": 0}
        outcome = JobWorker(
            CampaignJob.model_validate_json(text).model_copy(update=here), _get_worker_share()
        ).run()
        yield outcome.model_dump_json()
        if outcome.run_id:
            yield from _pack_run(runs / outcome.run_id, place / "run.tar")
    finally:
        remove_tree(place)


def _get_worker_share() -> MachineShare:
    ray = importlib.import_module("ray")
    return MachineShare(gpus=tuple(str(each) for each in ray.get_gpu_ids()))


def _pack_run(run: Path, archive: Path) -> Iterator[bytes]:
    with tarfile.open(archive, "w") as tar:
        tar.add(run, arcname=run.name)
    with archive.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


class _PieceReader:
    """Pieces of bytes as a file that is read once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def _unpack_run(pieces: Iterator[bytes], run_id: str, runs: Path) -> None:
    """There whole or not at all. Links stay as the agent made them; nothing is written outside."""
    place = Path(tempfile.mkdtemp(prefix=".fetching-", dir=runs))
    try:
        with tarfile.open(fileobj=cast(IO[bytes], _PieceReader(pieces)), mode="r|") as tar:
            tar.extractall(place, filter="tar")
        (place / run_id).rename(runs / run_id)
    finally:
        remove_tree(place)
    export.update_results_csv(RunPaths(runs / run_id))


def _require_reachable(address: str) -> None:
    """Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # `auto`, or whatever else Ray knows
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise WorldError(
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
        raise WorldError(
            f"Ray does not answer: {error}.", "Name a cluster that runs: --address HOST:PORT."
        ) from error
    cluster = RayExecutor(ray, resources, parallel, fetch)
    try:
        yield cluster
    finally:
        cluster.close()
        ray.shutdown()
