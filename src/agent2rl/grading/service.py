"""Accept submissions and give each a verdict, in order.

A submission is frozen before it gets its number. Then it waits in the grading queue of its GPU (or of the
machine, without one), where it is checked and graded in a child process. Every step is in the ledger before
the agent gets an answer about it. The HTTP side is in `api`.
"""

import logging
import queue
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Literal

from agent2rl.core.errors import Agent2RLError, GradingError, Refusal
from agent2rl.core.grading_records import Submission, find_best_submission
from agent2rl.core.records import Budget, KeptWeights, TimeBreakdown
from agent2rl.grading.agent_clock import AgentClock
from agent2rl.grading.grading_child import EvaluationFailed
from agent2rl.grading.rollout_meter import RolloutMeter
from agent2rl.grading.scores_file import write_scores_file
from agent2rl.grading.submission_freezer import SubmissionFreezer
from agent2rl.grading.submission_grader import (
    FAULT,
    SubmissionGrader,
    SubmissionVerdict,
    hide_numbers,
    shorten_error,
)
from agent2rl.grading.verdict_maker import GradingSetup, GradingTimeOver, VerdictMaker
from agent2rl.record.crash_recovery import AgentEnd
from agent2rl.record.recorder import Recorder
from agent2rl.system.unix import release_free_memory

logger = logging.getLogger(__name__)


class GradingQueue:
    """Grade submissions in order on one thread, so that gradings on one device never overlap."""

    def __init__(self, grade: Callable[[int, float], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._grade = grade
        self._thread = threading.Thread(target=self._run_gradings, name="grading-queue", daemon=True)
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
                logger.exception("The grading of submission %d was not recorded", number)


MOST_SUBMISSIONS = 1000
MOST_NOTES = 10_000
"""Refusals and internal errors that are recorded; the agent decides how many there are."""
WAITING = 64
"""Submissions that may wait for their grading at once."""


class SubmissionsClosed(Agent2RLError):
    """The service accepts no more submissions."""


class QueueFull(Agent2RLError):
    """Too many submissions are waiting."""


class UnknownGpu(Refusal):
    """The run has no GPU of this name."""


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
        setup: GradingSetup,
        budget: Budget,
        recorder: Recorder,
        stop: threading.Event,
        on_accept: Callable[[int], None] = lambda _: None,
        on_submit: Callable[["GradingService"], None] = lambda _: None,
        clock: AgentClock | None = None,
        keep: KeptWeights = "best",
    ) -> None:
        self.setup = setup
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
        self._verdict_lock = threading.Lock()
        """Gradings on several GPUs end at the same time, and only one is the best."""
        self._open = False
        self._note_count = 0
        self._submissions: dict[int, Submission] = dict(recorder.resume_state.submissions)
        self.grader = SubmissionGrader(setup.base, setup.child, recorder, stop)
        self._freezer = SubmissionFreezer(setup, recorder, self.list_submissions, self.record_fault)
        self._verdict_maker = VerdictMaker(setup, self.grader, recorder, stop, self.list_submissions)
        self._unrecorded: set[int] = set()
        """Submissions with a verdict that could not be recorded, so that it is not reported."""
        self._queues = {gpu: GradingQueue(self._grade_submission) for gpu in setup.gpus or ("cpu",)}

    # Called by the API

    def submit(self, path: str, gpu: str | None = None) -> Submission:
        """Accept a submission and freeze it: nothing that the agent does afterwards changes it."""
        with self._accept_lock:
            self._refuse_when_closed()
            gpu, grading_queue = self._choose_queue(gpu)
            submission = Submission(
                id=len(self._submissions) + 1, path=path, gpu=gpu, accepted_at=time.time()
            )
            # Before it is frozen: the time for that is not training time either.
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
        freeze = self._freezer.freeze(submission)
        seconds = time.monotonic() - begin
        state = freeze.verdict or "frozen"
        logger.info("Submission %d (%.100r): %s in %.2f s", submission.id, submission.path, state, seconds)
        submission = freeze.apply_to(submission, seconds)
        # The record comes first: nothing is published or answered that a crash could still undo.
        self._recorder.record_submission(submission, freeze.manifest)
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
            self._verdict_maker.limit_gradings()
        for submission in resume_state.submissions.values():
            if submission.id not in resume_state.pinned:
                self._on_accept(submission.id)
            if submission.verdict is None:
                self._grade_submission(submission.id, 0.0)
            elif submission.id not in resume_state.graded:
                # Refused when it was accepted; the harness died before the second record.
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
        # Whoever is being accepted holds this lock, and is in its queue before the queues close.
        with self._accept_lock:
            self._open = False
            self.ended_at = time.time()
            self.clock.end()
        self._verdict_maker.limit_gradings()
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
            raise SubmissionsClosed("The time is over: no more submissions are accepted.")
        max_submissions = min(self.budget.submissions or MOST_SUBMISSIONS, MOST_SUBMISSIONS)
        if len(self._submissions) >= max_submissions:
            raise SubmissionsClosed(f"All {max_submissions} submissions of the budget are used up.")
        if sum(s.verdict is None for s in self._submissions.values()) >= WAITING:
            raise QueueFull(
                f"{WAITING} submissions are already waiting.", "Wait for their verdicts, then submit again."
            )

    def _choose_queue(self, gpu: str | None) -> tuple[str | None, GradingQueue]:
        """Return the GPU to grade on, if there is one, and its queue. Of several GPUs it is the first."""
        if gpu is None:
            first = self.setup.gpus[0] if self.setup.gpus else None
            return first, self._queues[first or "cpu"]
        named = [self.setup.find_gpu(name.strip()) for name in gpu.split(",")]
        if named[0] is None or None in named:
            gpus = ", ".join(self.setup.gpus) or "none"
            raise UnknownGpu(f"This run has no GPU {gpu[:40]!r} (it has: {gpus}).", "Leave `gpu` out.")
        return named[0], self._queues[named[0]]

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
            verdict = self._verdict_maker.reach_verdict(submission)
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
        score = f" {verdict.score.value:.2f}" if verdict.score else ""
        lineage = "" if verdict.lineage == "unknown" else f", {verdict.lineage}"
        logger.info("Submission %d: %s%s%s after %.1f s", number, verdict.verdict, score, lineage, seconds)
        with self._verdict_lock:
            self._publish_verdict(verdict.apply_to(submission, queue_seconds, seconds))
            self._drop_superseded()

    def _log_error(self, number: int, error: EvaluationFailed) -> None:
        """Write the whole error to the grading log, for the owner of the run."""
        with self._recorder.paths.submission_paths(number).log.open("a", encoding="utf-8") as log:
            log.write(f"{error}\n")

    def _publish_verdict(self, graded: Submission) -> None:
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
        write_scores_file(self._recorder.paths.workspace, submissions, self.setup.baseline.value)

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
                    logger.exception("The copy of submission %d was not deleted", submission.id)
                else:
                    with self._state_lock:
                        self._submissions[dropped.id] = dropped
