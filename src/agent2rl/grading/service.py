"""Accepts submissions and gives each a verdict, in order.

A submission is frozen before it gets its number. Then it waits in the grading queue of its GPU (or of the
machine, without one), where it is checked and graded in a child process. Every step is in the ledger before
the agent hears of it. The HTTP side is in `api`.
"""

import math
import queue
import re
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal, TypeVar

from agent2rl.analysis import statistics
from agent2rl.core.errors import Agent2RLError, GradingError, MachineError, Refusal
from agent2rl.core.grading_records import EvalScore, Manifest, Submission
from agent2rl.core.records import Budget, TimeBreakdown
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.freeze import FreezeLimits, FrozenSubmission, freeze_submission, require_intact_copy
from agent2rl.grading.grading_child import EvaluationFailed, GradingChild
from agent2rl.grading.lineage import trace_lineage
from agent2rl.grading.rollout_meter import RolloutMeter
from agent2rl.grading.submission_grader import (
    SubmissionGrader,
    SubmissionVerdict,
    repeat_verdict,
    score_verdict,
)
from agent2rl.grading.untrusted_model_files import weights_sha256
from agent2rl.record.recorder import Recorder

# Gradings one after the other, on a thread of their own.


class GradingQueue:
    """One thread that takes numbers in order: gradings on one device never overlap."""

    def __init__(self, work: Callable[[int, float], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._work = work
        self._thread = threading.Thread(target=self._run_gradings, name="grading-lane", daemon=True)
        self._thread.start()

    def put(self, number: int) -> None:
        self._queue.put((number, time.monotonic()))

    def close(self) -> None:
        """Finish what is queued, then end."""
        self._queue.put(None)
        self._thread.join()

    def _run_gradings(self) -> None:
        while (turn := self._queue.get()) is not None:
            number, since = turn
            with suppress(Exception):  # the record could not be written; the next one may
                self._work(number, time.monotonic() - since)


T = TypeVar("T")

FAULT = "A fault of the grading service ({}), not of your model: it is on the record. Submit again later."
ROOM_BYTES = 256 << 20
"""Beyond weights of twice the base's size, and left free on the disk: submissions must not fill it."""
MOST_SUBMISSIONS = 1000
MESSAGE_CHARACTERS = 4000
MOST_NOTES = 10_000
"""Refusals and faults on the record."""
MOST_NAMES = 20
"""Of files that were left out."""
WAITING = 64
"""Submissions that may wait for their grading at once."""


class Closed(Agent2RLError):
    """The service takes no more submissions."""


class Busy(Agent2RLError):
    """Too many submissions wait already."""


class GradingTimeOver(GradingError):
    """The time for gradings after the agent's end is over."""


@dataclass(frozen=True)
class GradingSetup:
    """What the service grades against."""

    seen_at: PurePosixPath
    """Where the agent sees its workspace."""
    base: BaseModel
    base_seen_at: PurePosixPath
    """Where the agent sees the base model, below the workspace."""
    baseline: EvalScore
    child: GradingChild
    gpus: tuple[str, ...] = ()


class GradingService:
    """`stop` ends it early: what is being graded is stopped, and what waits is not begun.

    `taken` hears of each submission when it is taken in, before it is graded.
    """

    def __init__(
        self,
        graded: GradingSetup,
        budget: Budget,
        recorder: Recorder,
        stop: threading.Event,
        taken: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.graded = graded
        self.budget = budget
        self.started_at = time.time()
        self._deadline = time.monotonic() + budget.wall_seconds
        self.meter = RolloutMeter(budget, recorder)
        self._recorder = recorder
        self._stop = stop
        self._taken = taken
        self._taking = threading.Lock()
        self._changed = threading.Lock()
        self._open = False
        self._noted = 0
        self._submissions: dict[int, Submission] = dict(recorder.past.submissions)
        self.grader = SubmissionGrader(graded.base, graded.child, recorder, stop)
        self._grading_deadline = math.inf
        """When gradings end, once the agent has: on the clock of `time.monotonic`."""
        self._unrecorded: set[int] = set()
        """Submissions whose verdict could not be written down, so that nobody is told of it."""
        self._queues = {gpu: GradingQueue(self._grade_submission) for gpu in graded.gpus or ("cpu",)}

    # What the agent can ask

    def submit(self, path: str, gpu: str | None = None) -> Submission:
        """Take a submission in: from here on nothing the agent does changes it."""
        with self._taking:
            self._refuse_when_closed()
            gpu, lane = self._choose_queue(gpu)
            submission = Submission(
                id=len(self._submissions) + 1, path=path, gpu=gpu, accepted_at=time.time()
            )
            begin = time.monotonic()
            taken = self._try_freeze(submission)
            submission = Submission.model_validate(
                {**submission.model_dump(), "freeze_seconds": time.monotonic() - begin, **taken.fields}
            )
            self._recorder.record_submission(submission, taken.manifest if submission.kept else None)
            self._taken(submission.id)
            if submission.verdict:
                self._recorder.record_verdict(submission)
            with self._changed:
                self._submissions[submission.id] = submission
            if not submission.verdict:
                lane.put(submission.id)
            return submission

    def find_submission(self, number: int) -> Submission | None:
        with self._changed:
            return self._submissions.get(number)

    def is_unrecorded(self, number: int) -> bool:
        """Whether a submission has a verdict that could not be put on the record."""
        with self._changed:
            return number in self._unrecorded

    def list_submissions(self) -> list[Submission]:
        with self._changed:
            return list(self._submissions.values())

    def find_best(self) -> Submission | None:
        """The most gained on the split that answers, the earliest of equals, of what was trained from the
        base model."""
        scored = [s for s in self.list_submissions() if s.score and s.lineage not in ("copied", "foreign")]
        return max(scored, key=lambda s: (s.improvement or 0.0, -s.id), default=None)

    def can_take(self) -> bool:
        """Whether the budget allows another submission."""
        return len(self.list_submissions()) < min(
            self.budget.submissions or MOST_SUBMISSIONS, MOST_SUBMISSIONS
        )

    def remaining_seconds(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    # What the runner does

    def catch_up(self) -> None:
        """Give a verdict to what an earlier harness took in and did not come to grade, in its order."""
        past = self._recorder.past
        if past.over is not None:
            self._limit_gradings()
        for submission in past.submissions.values():
            if submission.id not in past.pinned:
                self._taken(submission.id)
            if submission.verdict is None:
                self._grade_submission(submission.id, 0.0)
            elif submission.id not in past.graded:
                self._recorder.record_verdict(submission)

    def start(self) -> float:
        """The clock starts, or goes on, and submissions are taken; returns when it will end."""
        left = self.budget.wall_seconds - self._recorder.past.used_seconds
        self.started_at = time.time() - self._recorder.past.used_seconds
        self._deadline = time.monotonic() + left
        self._open = True
        return time.time() + left

    def finish_gradings(self) -> None:
        """Take no more, and wait until everything taken has its verdict.

        All gradings from here on together have the time of one; what was not graded then has expired.
        """
        with self._taking:
            self._open = False
        self._limit_gradings()
        for lane in self._queues.values():
            lane.close()

    def record_fault(self, where: str) -> None:
        """Keep the trace of an error of ours; the agent hears only that there was one."""
        self._record_note("fault", where=where, trace=traceback.format_exc())

    def record_refusal(self, error: Agent2RLError) -> None:
        """A request that came to nothing."""
        self._record_note("refused", why=error.message)

    def _record_note(self, kind: Literal["fault", "refused"], **data: str) -> None:
        """The agent decides how many there are, so the record of them has an end."""
        self._noted += 1
        if self._noted <= MOST_NOTES:
            self._recorder.record_event(kind, **data)
        elif self._noted == MOST_NOTES + 1:
            self._recorder.record_event("warning", text="Refusals and faults are not recorded from here on.")

    def sum_clock(self, agent_seconds: float) -> TimeBreakdown:
        done = self.list_submissions()
        return TimeBreakdown(
            agent=agent_seconds,
            queue=sum(s.queue_seconds or 0 for s in done),
            grading=sum(s.grading_seconds or 0 for s in done),
        )

    # Steps

    def _refuse_when_closed(self) -> None:
        if not self._open or self.remaining_seconds() <= 0:
            raise Closed("The budget's time is over: no more submissions are taken.")
        most = min(self.budget.submissions or MOST_SUBMISSIONS, MOST_SUBMISSIONS)
        if len(self._submissions) >= most:
            raise Closed(f"The budget's {most} submissions are used up.")
        if sum(s.verdict is None for s in self._submissions.values()) >= WAITING:
            raise Busy(f"{WAITING} submissions wait already.", "Wait for their verdicts, then submit again.")

    def _choose_queue(self, gpu: str | None) -> tuple[str | None, GradingQueue]:
        """The GPU that will grade, where there is one, and its lane."""
        if gpu is None:
            gpu = self.graded.gpus[0] if self.graded.gpus else None
        elif gpu not in self.graded.gpus:
            known = ", ".join(self.graded.gpus) or "none"
            raise Refusal(f"This run has no GPU {gpu[:40]!r} (it has: {known}).", "Leave `gpu` out.")
        return gpu, self._queues[gpu or "cpu"]

    def _choose_gpu(self, submission: Submission) -> str | None:
        """The one it asked for, unless this machine is another one and lacks it."""
        gpus = self.graded.gpus
        return submission.gpu if submission.gpu in gpus or not gpus else gpus[0]

    def _try_freeze(self, submission: Submission) -> "_FreezeOutcome":
        """Freeze it, or say why not."""
        try:
            relative = self._resolve_path(submission.path)
            if relative == self.graded.base_seen_at:
                return _FreezeOutcome(None, {"content_sha256": self.graded.base.manifest.sha256})
            frozen = self._freeze_submission(submission.id, relative)
        except Refusal as refusal:
            return _FreezeOutcome(None, {"verdict": "rejected", "message": _shorten_error(refusal)})
        except (Agent2RLError, OSError) as error:
            self.record_fault("freezing")
            return _FreezeOutcome(None, {"verdict": "failed", "message": FAULT.format(type(error).__name__)})
        digest, left_out = frozen.manifest.sha256, _shorten_names(frozen.left_out)
        return _FreezeOutcome(frozen.manifest, {"content_sha256": digest, "left_out": left_out, "kept": True})

    def _freeze_submission(self, number: int, relative: PurePosixPath) -> FrozenSubmission:
        limits = FreezeLimits(bytes=2 * self.graded.base.bytes + ROOM_BYTES)
        target = self._recorder.paths.submission_paths(number)
        target.root.mkdir(parents=True)
        if shutil.disk_usage(target.root).free < limits.bytes + ROOM_BYTES:
            raise MachineError("The disk has no room for another submission.")
        return freeze_submission(self._recorder.paths.workspace, relative, target.model, limits)

    def _resolve_path(self, path: str) -> PurePosixPath:
        """The path below the workspace, as the agent names it: absolute or relative to the workspace."""
        named = PurePosixPath(path)
        if not named.is_absolute():
            return named
        if not named.is_relative_to(self.graded.seen_at):
            raise Refusal(f"{path[:80]!r} is not in the workspace.", f"Save it below {self.graded.seen_at}.")
        return named.relative_to(self.graded.seen_at)

    def _grade_submission(self, number: int, waited: float) -> None:
        """One submission's turn in its lane."""
        waiting = self._submissions[number]
        begin = time.monotonic()
        try:
            if self._stop.is_set():
                raise GradingError("The run was stopped before this submission's turn.")
            verdict = self._reach_verdict(waiting)
        except Refusal as refusal:
            verdict = SubmissionVerdict("rejected", _shorten_error(refusal))
        except GradingTimeOver as error:
            verdict = SubmissionVerdict("expired", _shorten_error(error))
        except EvaluationFailed as error:
            self._log_error(waiting.id, error)
            verdict = SubmissionVerdict("failed", _hide_numbers(_shorten_error(error)))
        except GradingError as error:
            verdict = SubmissionVerdict("failed", _shorten_error(error))
        except Exception as error:
            self.record_fault("grading")
            verdict = SubmissionVerdict("failed", FAULT.format(type(error).__name__))
        done = verdict.settle(waiting, waited, time.monotonic() - begin)
        self._settle_submission(done.model_copy(update={"kept": done.kept or self._is_best(done)}))

    def _log_error(self, number: int, error: EvaluationFailed) -> None:
        """The whole text, for the owner of the run."""
        with self._recorder.paths.submission_paths(number).log.open("a", encoding="utf-8") as log:
            log.write(f"{error}\n")

    def _limit_gradings(self) -> None:
        self._grading_deadline = time.monotonic() + self.graded.child.seconds

    def _limit_child(self, submission: Submission) -> GradingChild:
        """How to grade it, within the time that is left for gradings."""
        child = self.graded.child
        left = self._grading_deadline - time.monotonic()
        if left <= 0:
            raise GradingTimeOver(
                f"The time for gradings after the run's end ({child.seconds:g} s for all of them) is used up."
            )
        return replace(child, gpu=self._choose_gpu(submission), seconds=min(child.seconds, left))

    def _settle_submission(self, done: Submission) -> None:
        """On the record first; then the agent may hear of it, and a copy that nothing rests on may go."""
        try:
            self._recorder.record_verdict(done)
        except BaseException:
            with self._changed:
                self._unrecorded.add(done.id)
            raise
        with self._changed:
            self._submissions[done.id] = done
        if not done.kept:
            shutil.rmtree(self._recorder.paths.submission_paths(done.id).model, ignore_errors=True)

    def _is_best(self, done: Submission) -> bool:
        if done.score is None or done.same_as is not None or done.lineage in ("copied", "foreign"):
            return False
        best = self.find_best()
        return best is None or (done.improvement or 0.0) > (best.improvement or 0.0)

    def _reach_verdict(self, submission: Submission) -> SubmissionVerdict:
        graded, paths = self.graded, self._recorder.paths.submission_paths(submission.id)
        if submission.content_sha256 == graded.base.manifest.sha256:
            return self._score_as_baseline(graded.base.weights_sha256)
        earlier = self._find_same_content(submission)
        if earlier is not None:
            return repeat_verdict(earlier)
        if submission.id in self._recorder.past.submissions:
            require_intact_copy(paths, self._recorder.past.manifests[submission.id])
        parts = self.grader.check(paths)
        digest = weights_sha256(paths.model)
        if digest == graded.base.weights_sha256:
            return self._score_as_baseline(digest)
        origin = trace_lineage(paths.model, graded.base)
        self._recorder.record_lineage(paths, origin)
        if origin.verdict == "copied":
            return self._score_as_baseline(digest)
        self._recorder.record_event("grading", submission=submission.id)
        found = self._in_time(
            lambda: self.grader.grade(parts, paths, "feedback", self._limit_child(submission))
        )
        score = statistics.score_evaluation(found, "feedback")
        ablated, ablation = None, None
        if parts.differs_beside_weights and score.value > graded.baseline.value:
            without = self._in_time(
                lambda: self.grader.grade_ablations(parts, "feedback", self._limit_child(submission))
            )
            ablated, ablation = statistics.score_evaluation(without.results, "feedback"), without.key
        verdict = score_verdict(score, graded.baseline, ablated, origin, digest)
        return replace(verdict, ablation=ablation)

    def _in_time(self, grade: Callable[[], T]) -> T:
        """A grading that the end of all gradings cuts short has expired, and has not failed."""
        try:
            return grade()
        except GradingError as error:
            if not isinstance(error, GradingTimeOver) and time.monotonic() >= self._grading_deadline:
                raise GradingTimeOver("The time for gradings after the run's end was over.") from error
            raise

    def _score_as_baseline(self, digest: str) -> SubmissionVerdict:
        return SubmissionVerdict(
            "scored",
            "These are the base model's own weights, so this is the baseline. Train, then submit.",
            score=self.graded.baseline,
            improvement=0.0,
            lineage="copied",
            weights_sha256=digest,
        )

    def _find_same_content(self, submission: Submission) -> Submission | None:
        for earlier in self.list_submissions():
            settled = earlier.verdict in ("scored", "rejected") and earlier.same_as is None
            if settled and earlier.content_sha256 == submission.content_sha256 and earlier.id < submission.id:
                return earlier
        return None


@dataclass(frozen=True)
class _FreezeOutcome:
    """What came of freezing: the manifest of the copy, where there is one, and what is known by now."""

    manifest: Manifest | None
    fields: dict[str, object]


def _shorten_error(error: Agent2RLError) -> str:
    """What the agent hears, and the record keeps: an agent that names a thousand files must not fill it."""
    text = str(error)
    return text if len(text) <= MESSAGE_CHARACTERS else text[:MESSAGE_CHARACTERS] + " … (cut)"


def _hide_numbers(text: str) -> str:
    """Every number as N: a length or a count could spell an example."""
    return re.sub(r"\d(?:[\d.,_]*\d)?", "N", text)


def _shorten_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The first names, and how many more there are."""
    if len(names) <= MOST_NAMES:
        return names
    return (*names[:MOST_NAMES], f"and {len(names) - MOST_NAMES} more")
