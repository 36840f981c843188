"""Grade the base model and the best submission on a regression panel: the effect of training on other tasks.

It comes after everything that counts, so it changes no score. A grading that fails leaves its reason in place
of a score, and the run as it is.
"""

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from agent2rl.analysis import statistics
from agent2rl.core.agent import UNTOUCHED_AGENT
from agent2rl.core.errors import Agent2RLError, GradingError
from agent2rl.core.grading_records import EvalResult, EvalScore, PanelResult, Part, Submission
from agent2rl.grading.baseline import BaselineGrader
from agent2rl.grading.grading_child import GradingChild, count_program_sandboxes
from agent2rl.grading.submission_grader import SubmissionGrader
from agent2rl.record.recorder import Recorder
from agent2rl.run.assets import PanelTask
from agent2rl.run.run_outcome import RunOutcome


@dataclass(frozen=True)
class RegressionPanelGrader:
    baseline: BaselineGrader
    """Of the run's own task."""
    cache: Path | None
    """Of baselines of other tasks."""
    grader: SubmissionGrader
    recorder: Recorder
    stop: threading.Event

    def grade_tasks(self, outcome: RunOutcome, panel: tuple[PanelTask, ...]) -> None:
        """Fill in the results on the panel, if the run has anything to grade."""
        best = outcome.best
        if best is None and outcome.spec.agent != UNTOUCHED_AGENT:
            return
        for number, entry in enumerate(panel, start=1):
            if self.stop.is_set():
                return
            self.recorder.record_event("phase", name="also", task=entry.name)
            outcome.also = (*outcome.also, self._grade_entry(number, entry, best))

    def _grade_entry(self, number: int, entry: PanelTask, best: Submission | None) -> PanelResult:
        result = PanelResult(task=entry.name)
        part: Part = "heldout" if entry.task else "train"
        try:
            before = self._grade_baseline(number, entry)
            result = result.model_copy(update={"baseline": _score_results(before, part)})
            if best is None:
                return result
            after = self._grade_best(number, entry, best)
            change = statistics.compare_evaluations(before, after)
            return result.model_copy(update={"best": _score_results(after, part), "change": change})
        except Agent2RLError as error:
            return result.model_copy(update={"reason": error.message})

    def _grade_baseline(self, number: int, entry: PanelTask) -> EvalResult:
        recorder, where = self.recorder, self.recorder.paths.panel_paths(number, "baseline")
        recorded = recorder.resume_state.read_recorded_results(recorder.paths, where, "heldout")
        if recorded:
            return recorded
        version = entry.task.evaluator.version if entry.task else self.baseline.evaluator_version
        cache = self.cache if entry.task else self.baseline.cache
        grader = replace(self.baseline, child=self._make_child(entry), evaluator_version=version, cache=cache)
        where.root.mkdir(parents=True, exist_ok=True)
        graded = grader.grade_split(
            "heldout", where.log, recorder.paths.scratch, self.stop, recorder.paths.run_id
        )
        recorder.record_results(where, "heldout", graded.results, measured=graded.measured.model_dump())
        return graded.results

    def _grade_best(self, number: int, entry: PanelTask, best: Submission) -> EvalResult:
        recorder, where = self.recorder, self.recorder.paths.panel_paths(number, "best")
        recorded = recorder.resume_state.read_recorded_results(recorder.paths, where, "heldout")
        if recorded:
            return recorded
        if not best.kept:  # the run was resumed after the last copies were dropped
            raise GradingError("The weights of the best submission were not kept.")
        parts = self.grader.check(recorder.paths.submission_paths(best.id))
        return self.grader.grade(parts, where, "heldout", self._make_child(entry))

    def _make_child(self, entry: PanelTask) -> GradingChild:
        """Return what grades an entry: as the run's own grading, but with the other task and its examples."""
        child = replace(
            self.baseline.child,
            # The panel's examples take the place of a split, so that all of grading works as it
            # does.
            splits={"heldout": entry.examples},
            evaluator_folders=entry.evaluator_folders,
        )
        if entry.task is None:
            return child
        return replace(
            child,
            task=entry.name,
            code=entry.task.code,
            programs=count_program_sandboxes(entry.task),
            prompts=None,
            profile=None,
            proxy_socket=None,
            proxy_description="",
        )


def _score_results(results: EvalResult, part: Part) -> EvalScore:
    return statistics.score_evaluation(results, part)
