"""Reach the verdict about a frozen submission: check it, grade it, and compare it with the base model.

After the end of the agent, all gradings share the time limit of one.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from agent2rl.analysis import statistics
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import EvalResult, EvalScore, Submission
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.fingerprint import Fingerprint
from agent2rl.grading.freeze import require_intact_copy
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.lineage import WeightsOrigin, differs_from_base
from agent2rl.grading.model_builder import ModelParts
from agent2rl.grading.siblings import trace_origin
from agent2rl.grading.submission_grader import (
    SubmissionGrader,
    SubmissionVerdict,
    repeat_verdict,
    score_as_baseline,
    score_verdict,
)
from agent2rl.record.paths import SubmissionPaths
from agent2rl.record.recorder import Recorder

logger = logging.getLogger(__name__)

T = TypeVar("T")


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


class VerdictMaker:
    """Reach verdicts about submissions. `list_submissions` returns all of the run, some of them equal."""

    def __init__(
        self,
        setup: GradingSetup,
        grader: SubmissionGrader,
        recorder: Recorder,
        stop: threading.Event,
        list_submissions: Callable[[], list[Submission]],
    ) -> None:
        self._setup = setup
        self._grader = grader
        self._recorder = recorder
        self._stop = stop
        self._list_submissions = list_submissions
        self._grading_deadline = math.inf
        """When gradings must end after the end of the agent, on the clock of `time.monotonic`."""

    def limit_gradings(self) -> None:
        """All gradings from here on share the time limit of one."""
        self._grading_deadline = time.monotonic() + self._setup.child.seconds

    def _limit_child(self, submission: Submission) -> GradingChild:
        """Return the grading child for a submission, limited to the time left for gradings."""
        child = self._setup.child
        seconds_left = self._grading_deadline - time.monotonic()
        if seconds_left <= 0:
            raise GradingTimeOver(
                f"The time for gradings after the end of the run ({child.seconds:g} s in total) is used up."
            )
        return replace(child, gpu=self._choose_gpu(submission), seconds=min(child.seconds, seconds_left))

    def reach_verdict(self, submission: Submission) -> SubmissionVerdict:
        setup, paths = self._setup, self._recorder.paths.submission_paths(submission.id)
        if submission.content_sha256 == setup.base.manifest.sha256:
            return score_as_baseline(setup.baseline, setup.base.weights_sha256)
        earlier = self._find_same_content(submission)
        if earlier is not None:
            logger.debug("Submission %d has the content of submission %d", submission.id, earlier.id)
            return repeat_verdict(earlier)
        if submission.id in self._recorder.resume_state.submissions:
            require_intact_copy(paths, self._recorder.resume_state.manifests[submission.id])
        parts = self._grader.check(paths)
        origin = None
        if not differs_from_base(parts.directory, setup.base):
            # Only a full comparison tells whether these are the base model's weights: those are not setup.
            origin = self._record_origin(paths, setup.trace_origin(parts.directory, self._stop))
            if origin.copied:
                return score_as_baseline(setup.baseline, origin.sha256)
        results, origin = self._grade_and_trace(submission, parts, origin)
        if origin.lineage is None or origin.copied:
            return score_as_baseline(setup.baseline, origin.sha256)
        score = statistics.score_evaluation(results, "feedback")
        ablated_score, ablation_key = None, None
        # A submission that gains nothing has no gain that its other files could explain.
        if parts.differs_beside_weights and score.value > setup.baseline.value:
            ablation = self._in_time(
                lambda: self._grader.grade_ablations(parts, "feedback", self._limit_child(submission))
            )
            ablated_score = statistics.score_evaluation(ablation.results, "feedback")
            ablation_key = ablation.key
            logger.debug("Submission %d without training: %.2f", submission.id, ablated_score.value)
        verdict = score_verdict(score, setup.baseline, ablated_score, origin.lineage, origin.sha256)
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
            tracing = None if origin else pool.submit(self._setup.trace_origin, parts.directory, self._stop)
            try:
                results = self._in_time(lambda: self._grader.grade(parts, paths, "feedback", child))
            finally:
                # Also where the grading failed: the comparison is finished and belongs on the
                # record.
                if tracing:
                    origin = self._record_origin(paths, tracing.result())
        assert origin is not None
        return results, origin

    def _record_origin(self, paths: SubmissionPaths, origin: WeightsOrigin) -> WeightsOrigin:
        if origin.lineage:
            logger.debug("Submission %s: lineage %s", paths.root.name, origin.lineage.verdict)
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
        for earlier in self._list_submissions():
            # One that failed or expired may get another verdict the next time.
            settled = earlier.verdict in ("scored", "rejected") and earlier.same_as is None
            if settled and earlier.content_sha256 == submission.content_sha256 and earlier.id < submission.id:
                return earlier
        return None

    def _choose_gpu(self, submission: Submission) -> str | None:
        """Return the requested GPU, or another if the run was resumed on a machine without it."""
        gpus = self._setup.gpus
        return submission.gpu if submission.gpu in gpus or not gpus else gpus[0]
