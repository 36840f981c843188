"""Accept submissions and give each a verdict, in order.

A submission is frozen before it gets its number. Then it waits in the grading queue of its GPU (or of the
machine, without one), where it is checked and graded in a child process. Every step is in the ledger before
the agent gets an answer about it. The HTTP side is in `api`.
"""

import logging
import math
import queue
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from agent2rl.analysis import statistics
from agent2rl.core.errors import Agent2RLError, GradingError, Refusal
from agent2rl.core.grading_records import EvalResult, EvalScore, Manifest, Submission, find_best_submission
from agent2rl.core.records import Budget, KeptWeights, TimeBreakdown
from agent2rl.core.unix import release_free_memory
from agent2rl.grading.agent_clock import AgentClock
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.fingerprint import Fingerprint
from agent2rl.grading.freeze import (
    DELETE_HINT,
    FreezeLimits,
    FrozenSubmission,
    NoDiskSpace,
    format_size,
    freeze_submission,
    require_intact_copy,
)
from agent2rl.grading.grading_child import EvaluationFailed, GradingChild
from agent2rl.grading.lineage import WeightsOrigin, differs_from_base
from agent2rl.grading.lora_adapter import is_adapter
from agent2rl.grading.model_builder import ModelParts
from agent2rl.grading.rollout_meter import RolloutMeter
from agent2rl.grading.scores_file import write_scores_file
from agent2rl.grading.siblings import trace_origin
from agent2rl.grading.submission_grader import (
    SubmissionGrader,
    SubmissionVerdict,
    hide_numbers,
    repeat_verdict,
    score_as_baseline,
    score_verdict,
    shorten_error,
)
from agent2rl.record.crash_recovery import AgentEnd
from agent2rl.record.paths import SubmissionPaths
from agent2rl.record.recorder import Recorder

logger = logging.getLogger(__name__)

# The queue of gradings, with its own thread.


class GradingQueue:
    """Grade submissions in order on one thread, so that gradings on one device never overlap."""

    def __init__(self, grade: Callable[[int, float], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._grade = grade
        self._thread = threading.Thread(target=self._run_gradings, name="grading-lane", daemon=True)
        self._thread.start()

    def put(self, number: int) -> None:
        self._queue.put((number, time.monotonic()))

    def close(self) -> None:
        """Grade everything that is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run_gradings(self) -> None:
        while (entry := self._queue.get()) is not None:
            number, queued_at = entry
            try:
                self._grade(number, time.monotonic() - queued_at)
            except Exception:  # the verdict could not be recorded; the next one may be
                logger.exception("grading of submission %d was not recorded", number)


T = TypeVar("T")

FAULT = "Internal error of the grading service ({}). Your model is not the cause. Submit again later."
ROOM_BYTES = 256 << 20
"""Allowed beyond twice the size of the base's weights."""
SPARE_BYTES = 512 << 20
"""Kept free on the disk by submissions: a sandbox is killed below 256 MiB, and gradings write results."""
MOST_DELETABLE = 5
"""Directories to delete that are named to the agent when the disk is full."""
MOST_SUBMISSIONS = 1000
MOST_NOTES = 10_000
"""Refusals and internal errors that are recorded; the agent decides how many there are."""
MOST_NAMES = 20
"""Names of ignored files in a record."""
WAITING = 64
"""Submissions that may wait for their grading at once."""


class Closed(Agent2RLError):
    """The service accepts no more submissions."""


class Busy(Agent2RLError):
    """Too many submissions are waiting."""


class UnknownGpu(Refusal):
    """The run has no GPU of this name."""


class GradingTimeOver(GradingError):
    """The time for gradings after the end of the agent is over."""


@dataclass(frozen=True)
class GradingSetup:
    """What the service needs to grade: the base model, its baseline and the grading child."""

    seen_at: PurePosixPath
    """Where the agent sees its workspace."""
    base: BaseModel
    base_seen_at: PurePosixPath
    """Where the agent sees the base model, below the workspace."""
    baseline: EvalScore
    child: GradingChild
    gpus: tuple[str, ...] = ()
    siblings: tuple[Fingerprint, ...] = ()
    """Models that no submission may look like."""

    def trace_origin(self, model: Path, stop: threading.Event) -> WeightsOrigin:
        return trace_origin(model, self.base, self.siblings, stop)

    def find_gpu(self, name: str) -> str | None:
        """Return the GPU of this name or, because a sandbox numbers its GPUs from 0, at this position."""
        if name in self.gpus:
            return name
        is_position = name.isdecimal() and int(name) < len(self.gpus)
        return self.gpus[int(name)] if is_position else None


class GradingService:
    """Accept and grade the submissions of one run.

    `stop` ends it early: the current grading is stopped, and waiting ones are not begun.
    `on_accept` is called with the number of each accepted submission, before it is graded.
    `on_submit` is called when a submission is known, and `last_submit_at` with it.
    `clock` is the agent's; without one, all of its wall time counts.
    `keep` says which frozen copies stay after their grading; the run drops the last ones with `none`.
    """

    def __init__(
        self,
        graded: GradingSetup,
        budget: Budget,
        recorder: Recorder,
        stop: threading.Event,
        on_accept: Callable[[int], None] = lambda _: None,
        on_submit: Callable[["GradingService"], None] = lambda _: None,
        clock: AgentClock | None = None,
        keep: KeptWeights = "best",
    ) -> None:
        self.graded = graded
        self.budget = budget
        self.started_at = time.time()
        self.ended_at: float | None = None
        """When the agent's time ended; None before."""
        self.clock = clock or AgentClock(budget, resume_state=recorder.resume_state)
        self.meter = RolloutMeter(budget, recorder)
        self._recorder = recorder
        self._stop = stop
        self._on_accept = on_accept
        self._on_submit = on_submit
        self._keep = keep
        self._accept_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._publish_lock = threading.Lock()
        self._settle_lock = threading.Lock()
        """Gradings on several GPUs end at the same time, and only one is the best."""
        self._open = False
        self._note_count = 0
        self._submissions: dict[int, Submission] = dict(recorder.resume_state.submissions)
        self.grader = SubmissionGrader(graded.base, graded.child, recorder, stop)
        self._grading_deadline = math.inf
        """When gradings must end after the end of the agent, on the clock of `time.monotonic`."""
        self._unrecorded: set[int] = set()
        """Submissions with a verdict that could not be recorded, so that it is not reported."""
        self._queues = {gpu: GradingQueue(self._grade_submission) for gpu in graded.gpus or ("cpu",)}

    # Called by the API

    def submit(self, path: str, gpu: str | None = None) -> Submission:
        """Accept a submission and freeze it: nothing that the agent does afterwards changes it."""
        with self._accept_lock:
            self._refuse_when_closed()
            gpu, grading_queue = self._choose_queue(gpu)
            submission = Submission(
                id=len(self._submissions) + 1, path=path, gpu=gpu, accepted_at=time.time()
            )
            self.clock.hold_submission(submission.id)
            try:
                submission = self._accept_submission(submission)
                if not submission.verdict:
                    grading_queue.put(submission.id)
            except BaseException:
                self.clock.release_submission(submission.id)
                raise
            if submission.verdict:
                self.clock.release_submission(submission.id)
            return submission

    def _accept_submission(self, submission: Submission) -> Submission:
        """Freeze and record a submission, and return it with the result."""
        begin = time.monotonic()
        freeze = self._try_freeze(submission)
        seconds = time.monotonic() - begin
        logger.debug(
            "submission %d: frozen in %.2f s, on %s", submission.id, seconds, submission.gpu or "cpu"
        )
        submission = Submission.model_validate(
            {**submission.model_dump(), "freeze_seconds": seconds, **freeze.fields}
        )
        self._recorder.record_submission(submission, freeze.manifest if submission.kept else None)
        self._on_accept(submission.id)
        if submission.verdict:
            self._recorder.record_verdict(submission)
        self._publish_submission(submission)
        self._on_submit(self)
        return submission

    def find_submission(self, number: int) -> Submission | None:
        with self._state_lock:
            return self._submissions.get(number)

    def is_unrecorded(self, number: int) -> bool:
        """Return whether the submission's verdict could not be recorded."""
        with self._state_lock:
            return number in self._unrecorded

    def list_submissions(self) -> list[Submission]:
        with self._state_lock:
            return list(self._submissions.values())

    @property
    def last_submit_at(self) -> float | None:
        """When the last submission was accepted."""
        return max((submission.accepted_at for submission in self.list_submissions()), default=None)

    def find_best(self) -> Submission | None:
        """Return the best submission on the feedback split."""
        return find_best_submission(self.list_submissions())

    def can_take(self) -> bool:
        """Return whether the budget allows another submission."""
        return len(self.list_submissions()) < min(
            self.budget.submissions or MOST_SUBMISSIONS, MOST_SUBMISSIONS
        )

    def remaining_seconds(self) -> float:
        return self.clock.remaining_seconds()

    # Called by the run

    def grade_leftover_submissions(self) -> None:
        """Grade, in order, what a crashed harness accepted and did not grade."""
        resume_state = self._recorder.resume_state
        if resume_state.agent_end is not None:
            self._limit_gradings()
        for submission in resume_state.submissions.values():
            if submission.id not in resume_state.pinned:
                self._on_accept(submission.id)
            if submission.verdict is None:
                self._grade_submission(submission.id, 0.0)
            elif submission.id not in resume_state.graded:
                self._recorder.record_verdict(submission)
        self._drop_superseded()

    def start(self) -> float:
        """Start or resume the clock, accept submissions, and return the time of the earliest deadline."""
        self.started_at = time.time() - self._recorder.resume_state.used_seconds
        self.clock.start()
        self._write_scores(self.list_submissions())
        self._open = True
        return time.time() + self.clock.remaining_seconds()

    def finish_gradings(self) -> None:
        """Accept no more submissions, and wait until all have a verdict.

        All gradings from here on share the time limit of one. Submissions not graded by then expire.
        """
        with self._accept_lock:
            self._open = False
            self.ended_at = time.time()
            self.clock.end()
        self._limit_gradings()
        for grading_queue in self._queues.values():
            grading_queue.close()

    def record_fault(self, where: str) -> None:
        """Record the traceback of an internal error; the agent only learns that there was one."""
        self._record_note("fault", where=where, trace=traceback.format_exc())

    def record_refusal(self, error: Agent2RLError) -> None:
        """Record a refused request."""
        self._record_note("refused", why=error.message)

    def _record_note(self, kind: Literal["fault", "refused"], **data: str) -> None:
        """Record up to MOST_NOTES notes, because the agent decides how many there are."""
        self._note_count += 1
        if self._note_count <= MOST_NOTES:
            self._recorder.record_event(kind, **data)
        elif self._note_count == MOST_NOTES + 1:
            self._recorder.record_event("warning", text="Further refusals and faults are not recorded.")

    def sum_clock(self, end: AgentEnd) -> TimeBreakdown:
        submissions = self.list_submissions()
        return TimeBreakdown(
            agent=end.agent_seconds,
            queue=sum(s.queue_seconds or 0 for s in submissions),
            grading=sum(s.grading_seconds or 0 for s in submissions),
            training=None
            if end.submission_seconds is None
            else max(0.0, end.agent_seconds - end.submission_seconds),
            gpu=end.gpu_seconds,
        )

    # Steps

    def _refuse_when_closed(self) -> None:
        if not self._open or self.remaining_seconds() <= 0:
            raise Closed("The time is over: no more submissions are accepted.")
        max_submissions = min(self.budget.submissions or MOST_SUBMISSIONS, MOST_SUBMISSIONS)
        if len(self._submissions) >= max_submissions:
            raise Closed(f"All {max_submissions} submissions of the budget are used up.")
        if sum(s.verdict is None for s in self._submissions.values()) >= WAITING:
            raise Busy(
                f"{WAITING} submissions are already waiting.", "Wait for their verdicts, then submit again."
            )

    def _choose_queue(self, gpu: str | None) -> tuple[str | None, GradingQueue]:
        """Return the GPU to grade on, if there is one, and its queue. Of several GPUs it is the first."""
        if gpu is None:
            first = self.graded.gpus[0] if self.graded.gpus else None
            return first, self._queues[first or "cpu"]
        named = [self.graded.find_gpu(name.strip()) for name in gpu.split(",")]
        if named[0] is None or None in named:
            gpus = ", ".join(self.graded.gpus) or "none"
            raise UnknownGpu(f"This run has no GPU {gpu[:40]!r} (it has: {gpus}).", "Leave `gpu` out.")
        return named[0], self._queues[named[0]]

    def _choose_gpu(self, submission: Submission) -> str | None:
        """Return the requested GPU, or another if the run was resumed on a machine without it."""
        gpus = self.graded.gpus
        return submission.gpu if submission.gpu in gpus or not gpus else gpus[0]

    def _try_freeze(self, submission: Submission) -> "_FreezeOutcome":
        """Freeze the submission, or return the verdict that explains why not."""
        try:
            relative = self._resolve_path(submission.path)
            if relative == self.graded.base_seen_at:
                return _FreezeOutcome(None, {"content_sha256": self.graded.base.manifest.sha256})
            frozen = self._freeze_submission(submission.id, relative)
        except Refusal as refusal:
            return _FreezeOutcome(None, {"verdict": "rejected", "message": shorten_error(refusal)})
        except (Agent2RLError, OSError) as error:
            self.record_fault("freezing")
            return _FreezeOutcome(None, {"verdict": "failed", "message": FAULT.format(type(error).__name__)})
        digest, left_out = frozen.manifest.sha256, _shorten_names(frozen.left_out)
        return _FreezeOutcome(frozen.manifest, {"content_sha256": digest, "left_out": left_out, "kept": True})

    def _freeze_submission(self, number: int, relative: PurePosixPath) -> FrozenSubmission:
        limits = FreezeLimits(bytes=2 * self.graded.base.bytes + ROOM_BYTES, spare_bytes=SPARE_BYTES)
        target = self._recorder.paths.submission_paths(number)
        target.root.mkdir(parents=True)
        try:
            frozen = freeze_submission(self._recorder.paths.workspace, relative, target.model, limits)
            self._require_merge_space(target.model)
            return frozen
        except NoDiskSpace as error:
            raise NoDiskSpace(error.message, f"{error.hint}{self._name_deletable(relative)}") from error

    def _require_merge_space(self, copy: Path) -> None:
        """Refuse an adapter whose merged weights would not fit on the disk, and delete its copy."""
        size, free = self.graded.base.bytes, shutil.disk_usage(copy).free
        if is_adapter(copy) and free < size + SPARE_BYTES:
            shutil.rmtree(copy)
            raise NoDiskSpace(
                f"The adapter has to be merged, and the merged model does not fit on the disk: "
                f"{format_size(free)} are free, and {format_size(size + SPARE_BYTES)} are needed.",
                DELETE_HINT,
            )

    def _name_deletable(self, relative: PurePosixPath) -> str:
        """Name the agent's own copies of earlier submissions: the service does not need them any more."""
        submitted = {
            path: None
            for each in self.list_submissions()
            if each.content_sha256 and (path := self._resolve_path(each.path)) != relative
        }
        deletable = [str(path) for path in submitted if path != self.graded.base_seen_at][-MOST_DELETABLE:]
        return f" You submitted: {', '.join(deletable)}." if deletable else ""

    def _resolve_path(self, path: str) -> PurePosixPath:
        """Return the path relative to the workspace; the agent may name it as an absolute path."""
        model_path = PurePosixPath(path)
        if not model_path.is_absolute():
            return model_path
        if not model_path.is_relative_to(self.graded.seen_at):
            raise Refusal(f"{path[:80]!r} is not in the workspace.", f"Save it below {self.graded.seen_at}.")
        return model_path.relative_to(self.graded.seen_at)

    def _grade_submission(self, number: int, queue_seconds: float) -> None:
        """Grade one submission, record its verdict, and let the agent's clock continue."""
        try:
            self._reach_and_record_verdict(number, queue_seconds)
        finally:
            self.clock.release_submission(number)
            release_free_memory()  # comparing weights uses many threads

    def _reach_and_record_verdict(self, number: int, queue_seconds: float) -> None:
        """Grade one submission and record its verdict."""
        submission = self._submissions[number]
        begin = time.monotonic()
        try:
            if self._stop.is_set():
                raise GradingError("The run was stopped before this submission was graded.")
            verdict = self._reach_verdict(submission)
        except Refusal as refusal:
            verdict = SubmissionVerdict("rejected", shorten_error(refusal))
        except GradingTimeOver as error:
            verdict = SubmissionVerdict("expired", shorten_error(error))
        except EvaluationFailed as error:
            self._log_error(submission.id, error)
            verdict = SubmissionVerdict("failed", hide_numbers(shorten_error(error)))
        except GradingError as error:
            verdict = SubmissionVerdict("failed", shorten_error(error))
        except Exception as error:
            self.record_fault("grading")
            verdict = SubmissionVerdict("failed", FAULT.format(type(error).__name__))
        finally:
            self.grader.discard_merged(self._recorder.paths.submission_paths(number))
        seconds = time.monotonic() - begin
        logger.debug("submission %d: %s after %.1f s", number, verdict.verdict, seconds)
        with self._settle_lock:
            self._settle_submission(verdict.settle(submission, queue_seconds, seconds))
            self._drop_superseded()

    def _log_error(self, number: int, error: EvaluationFailed) -> None:
        """Write the whole error to the grading log, for the owner of the run."""
        with self._recorder.paths.submission_paths(number).log.open("a", encoding="utf-8") as log:
            log.write(f"{error}\n")

    def _limit_gradings(self) -> None:
        self._grading_deadline = time.monotonic() + self.graded.child.seconds

    def _limit_child(self, submission: Submission) -> GradingChild:
        """Return the grading child for a submission, limited to the time left for gradings."""
        child = self.graded.child
        seconds_left = self._grading_deadline - time.monotonic()
        if seconds_left <= 0:
            raise GradingTimeOver(
                f"The time for gradings after the end of the run ({child.seconds:g} s in total) is used up."
            )
        return replace(child, gpu=self._choose_gpu(submission), seconds=min(child.seconds, seconds_left))

    def _settle_submission(self, graded: Submission) -> None:
        """Record the verdict first, then publish it, and delete the copy if it is not needed."""
        graded = graded.model_copy(update={"kept": graded.kept and self._keeps_copy(graded)})
        try:
            self._recorder.record_verdict(graded)
        except BaseException:
            with self._state_lock:
                self._unrecorded.add(graded.id)
            raise
        self._publish_submission(graded)
        if not graded.kept:
            shutil.rmtree(self._recorder.paths.submission_paths(graded.id).model, ignore_errors=True)

    def _publish_submission(self, submission: Submission) -> None:
        """Make a submission visible. A verdict is in scores.json before the agent hears of it."""
        with self._publish_lock:
            if submission.verdict:
                known = {each.id: each for each in self.list_submissions()} | {submission.id: submission}
                self._write_scores(known.values())
            with self._state_lock:
                self._submissions[submission.id] = submission

    def _write_scores(self, submissions: Iterable[Submission]) -> None:
        write_scores_file(self._recorder.paths.workspace, submissions, self.graded.baseline.value)

    def _keeps_copy(self, graded: Submission) -> bool:
        """Return whether the copy stays after the verdict. The held-out grading needs that of the best."""
        if graded.verdict == "expired" or (self._keep == "all" and graded.same_as is None):
            return True
        best = find_best_submission([*self.list_submissions(), graded])
        return best is not None and best.id == graded.id

    def _drop_superseded(self) -> None:
        """Delete copies that are not needed any more because a better submission was graded."""
        for submission in self.list_submissions():
            if submission.verdict and submission.kept and not self._keeps_copy(submission):
                try:
                    dropped = self._recorder.drop_copy(submission)
                except OSError:  # the verdict is recorded; the next one tries again
                    logger.exception("the copy of submission %d was not dropped", submission.id)
                else:
                    with self._state_lock:
                        self._submissions[dropped.id] = dropped

    def _reach_verdict(self, submission: Submission) -> SubmissionVerdict:
        graded, paths = self.graded, self._recorder.paths.submission_paths(submission.id)
        if submission.content_sha256 == graded.base.manifest.sha256:
            return score_as_baseline(graded.baseline, graded.base.weights_sha256)
        earlier = self._find_same_content(submission)
        if earlier is not None:
            return repeat_verdict(earlier)
        if submission.id in self._recorder.resume_state.submissions:
            require_intact_copy(paths, self._recorder.resume_state.manifests[submission.id])
        parts = self.grader.check(paths)
        origin = None
        if not differs_from_base(parts.directory, graded.base):
            # Only a full comparison tells whether these are the base model's weights: those are not graded.
            origin = self._record_origin(paths, graded.trace_origin(parts.directory, self._stop))
            if origin.copied:
                return score_as_baseline(graded.baseline, origin.sha256)
        results, origin = self._grade_and_trace(submission, parts, origin)
        if origin.lineage is None or origin.copied:
            return score_as_baseline(graded.baseline, origin.sha256)
        score = statistics.score_evaluation(results, "feedback")
        ablated_score, ablation_key = None, None
        if parts.differs_beside_weights and score.value > graded.baseline.value:
            ablation = self._in_time(
                lambda: self.grader.grade_ablations(parts, "feedback", self._limit_child(submission))
            )
            ablated_score = statistics.score_evaluation(ablation.results, "feedback")
            ablation_key = ablation.key
        verdict = score_verdict(score, graded.baseline, ablated_score, origin.lineage, origin.sha256)
        return replace(verdict, ablation=ablation_key)

    def _grade_and_trace(
        self, submission: Submission, parts: ModelParts, origin: WeightsOrigin | None
    ) -> tuple[EvalResult, WeightsOrigin]:
        """Grade a submission, and meanwhile compare its weights with the base model's, unless that is done.

        The verdict needs both. The results are recorded first, whichever is ready first.
        """
        paths = self._recorder.paths.submission_paths(submission.id)
        child = self._limit_child(submission)
        self._recorder.record_event("grading", submission=submission.id)
        with ThreadPoolExecutor(1, "lineage") as pool:
            tracing = None if origin else pool.submit(self.graded.trace_origin, parts.directory, self._stop)
            try:
                results = self._in_time(lambda: self.grader.grade(parts, paths, "feedback", child))
            finally:
                if tracing:
                    origin = self._record_origin(paths, tracing.result())
        assert origin is not None
        return results, origin

    def _record_origin(self, paths: SubmissionPaths, origin: WeightsOrigin) -> WeightsOrigin:
        if origin.lineage:
            self._recorder.record_lineage(paths, origin.lineage, origin.lineage.siblings)
        return origin

    def _in_time(self, grade: Callable[[], T]) -> T:
        """Turn a failure at the end of all gradings into an expiry."""
        try:
            return grade()
        except GradingError as error:
            if not isinstance(error, GradingTimeOver) and time.monotonic() >= self._grading_deadline:
                raise GradingTimeOver("The time for gradings after the end of the run is over.") from error
            raise

    def _find_same_content(self, submission: Submission) -> Submission | None:
        for earlier in self.list_submissions():
            settled = earlier.verdict in ("scored", "rejected") and earlier.same_as is None
            if settled and earlier.content_sha256 == submission.content_sha256 and earlier.id < submission.id:
                return earlier
        return None


@dataclass(frozen=True)
class _FreezeOutcome:
    """The manifest of the copy, if there is one, and the fields to set in the submission."""

    manifest: Manifest | None
    fields: dict[str, object]


def _shorten_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first names and the number of the others."""
    if len(names) <= MOST_NAMES:
        return names
    return (*names[:MOST_NAMES], f"and {len(names) - MOST_NAMES} more")
