"""Grades one submission: checks it, builds the model directory that an engine opens, and runs the child.

The same for every split, so that the held-out score is of the very model that got the feedback.
"""

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent2rl.analysis import statistics
from agent2rl.core.records import EvalResult, Split
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.checks import check_submission
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.model_builder import BuiltFiles, ModelParts, ablate_training, build_model
from agent2rl.grading.resaved_base import ResavedBase, resave_base
from agent2rl.store.files import remove_tree
from agent2rl.store.paths import SubmissionPaths
from agent2rl.store.recorder import Recorder


@dataclass(frozen=True)
class Ablation:
    key: str
    """Names its folder."""
    results: EvalResult


class SubmissionGrader:
    def __init__(
        self, base: BaseModel, child: GradingChild, recorder: Recorder, stop: threading.Event
    ) -> None:
        self.base = base
        self.child = child
        self._recorder = recorder
        self._stop = stop
        self._lock = threading.Lock()
        self._resaved: ResavedBase | None = None
        self._ablating = threading.Lock()
        self._ablations: dict[tuple[str, Split], EvalResult] = {}

    def check(self, where: SubmissionPaths) -> ModelParts:
        """What of a frozen submission takes effect, or a refusal."""
        return check_submission(where.model, self.base, self._resave)

    def grade(
        self, parts: ModelParts, where: SubmissionPaths, split: Split, child: GradingChild | None = None
    ) -> EvalResult:
        """The submission's answers on a split; those on record are not asked for again."""
        return self._grade(where, split, child, lambda place: build_model(parts, self.base, place))

    def grade_ablations(
        self, parts: ModelParts, split: Split, child: GradingChild | None = None
    ) -> "Ablation":
        """The best that the base model's own weights do, untrained, under a submission's other files."""
        found = [
            Ablation(each.ablation_key(self.base), self._grade_ablation(each, split, child))
            for each in parts.ablations()
        ]
        return max(found, key=lambda each: statistics.score_evaluation(each.results, split).value)

    def _grade_ablation(self, parts: ModelParts, split: Split, child: GradingChild | None) -> EvalResult:
        """Kept by content: submissions that differ in weights alone share it."""
        key = parts.ablation_key(self.base)
        with self._ablating:
            found = self._ablations.get((key, split))
            if found is None:
                where = self._recorder.paths.ablation_paths(key)
                found = self._grade(
                    where, split, child, lambda place: ablate_training(parts, self.base, place)
                )
                self._ablations[key, split] = found
            return found

    def _grade(
        self,
        where: SubmissionPaths,
        split: Split,
        child: GradingChild | None,
        build: Callable[[Path], BuiltFiles],
    ) -> EvalResult:
        recorder = self._recorder
        found = recorder.past.read_recorded_results(recorder.paths, where, split)
        if found is None:
            where.root.mkdir(parents=True, exist_ok=True)
            recorder.paths.scratch.mkdir(parents=True, exist_ok=True)
            place = Path(tempfile.mkdtemp(prefix="model-", dir=recorder.paths.scratch))
            try:
                files = build(place)
                child = child or self.child
                found = child.grade_model(files, split, where.log, recorder.paths.scratch, self._stop)
            finally:
                remove_tree(place)
            recorder.record_results(where, split, found)
        return found

    def _resave(self) -> ResavedBase:
        with self._lock:
            if self._resaved is None:
                paths = self._recorder.paths
                log = paths.scratch / "resave.log"
                self._resaved = resave_base(self.base, self.child, paths.scratch, log, self._stop)
            return self._resaved
