"""Grade one submission (check, build the model, run the grading child) and turn its scores into a verdict.

Grading is the same for every split, so the held-out score belongs to the same model as the feedback score.
"""

import logging
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from agent2rl.analysis import statistics
from agent2rl.core.errors import Agent2RLError, GradingError
from agent2rl.core.grading_records import EvalResult, EvalScore, Lineage, Split, Submission, Verdict
from agent2rl.grading.base_model import BaseModel
from agent2rl.grading.checks import ResavedBase, check_submission, resave_base
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.lineage import LineageReport
from agent2rl.grading.lora_adapter import is_adapter, merge_adapter, read_adapter
from agent2rl.grading.model_builder import BuiltFiles, ModelParts, ablate_training, build_model
from agent2rl.record.files import remove_tree
from agent2rl.record.paths import SubmissionPaths
from agent2rl.record.recorder import Recorder

logger = logging.getLogger(__name__)

FREE_BYTES = 256 << 20
"""Kept free on the disk when an adapter is merged."""


@dataclass(frozen=True)
class Ablation:
    key: str
    """The name of its folder."""
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
        """Return the parts of a frozen submission that take effect, or refuse it.

        An adapter is merged, so that its parts are those of a complete model until `discard_merged`.
        """
        parts = check_submission(where.model, self.base, self._resave)
        return self._merge(parts, where) if is_adapter(where.model) else parts

    def discard_merged(self, where: SubmissionPaths) -> None:
        """Delete the merged weights of an adapter, if there are any."""
        shutil.rmtree(self._merged_directory(where), ignore_errors=True)

    def _merge(self, parts: ModelParts, where: SubmissionPaths) -> ModelParts:
        directory = self._merged_directory(where)
        self.discard_merged(where)  # left by a crash
        directory.parent.mkdir(parents=True, exist_ok=True)
        adapter = read_adapter(where.model, self.base)
        needed, free = adapter.merged_bytes + FREE_BYTES, shutil.disk_usage(directory.parent).free
        if free < needed:
            raise GradingError(
                f"Merging the adapter takes {needed:,} bytes on the disk; {free:,} are free.",
                "Delete checkpoints that you do not need, then submit again.",
            )
        logger.debug(
            "%s: merging the adapter into %s bytes", _describe_subject(where), f"{adapter.merged_bytes:,}"
        )
        return replace(parts, tensors=merge_adapter(adapter, directory))

    def _merged_directory(self, where: SubmissionPaths) -> Path:
        return self._recorder.paths.scratch / f"merged-{where.root.name}"

    def grade(
        self, parts: ModelParts, where: SubmissionPaths, split: Split, child: GradingChild | None = None
    ) -> EvalResult:
        """Return the submission's results on a split; recorded results are not graded again."""
        return self._grade(where, split, child, lambda directory: build_model(parts, self.base, directory))

    def grade_ablations(
        self, parts: ModelParts, split: Split, child: GradingChild | None = None
    ) -> "Ablation":
        """Return the best result of the untrained base model with a submission's other files."""
        ablations = [
            Ablation(variant.ablation_key(self.base), self._grade_ablation(variant, split, child))
            for variant in parts.ablations()
        ]
        return max(ablations, key=lambda ablation: statistics.score_evaluation(ablation.results, split).value)

    def _grade_ablation(self, parts: ModelParts, split: Split, child: GradingChild | None) -> EvalResult:
        """Grade an ablation once: submissions that differ only in weights share it."""
        key = parts.ablation_key(self.base)
        # Held while it is graded: whoever needs the same ablation waits for it.
        with self._ablating:
            results = self._ablations.get((key, split))
            if results is None:
                where = self._recorder.paths.ablation_paths(key)
                results = self._grade(
                    where, split, child, lambda directory: ablate_training(parts, self.base, directory)
                )
                self._ablations[key, split] = results
            return results

    def _grade(
        self,
        where: SubmissionPaths,
        split: Split,
        child: GradingChild | None,
        build: Callable[[Path], BuiltFiles],
    ) -> EvalResult:
        recorder = self._recorder
        results = recorder.resume_state.read_recorded_results(recorder.paths, where, split)
        if results is not None:
            logger.debug("%s (%s): the results are already recorded", _describe_subject(where), split)
            return results
        where.root.mkdir(parents=True, exist_ok=True)
        recorder.paths.scratch.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="model-", dir=recorder.paths.scratch))
        try:
            begin = time.monotonic()
            files = build(directory)
            child = child or self.child
            results = child.grade_model(files, split, where.log, recorder.paths.scratch, self._stop)
            seconds = time.monotonic() - begin
            logger.debug("%s (%s): built and graded in %.1f s", _describe_subject(where), split, seconds)
        finally:
            remove_tree(directory)
        recorder.record_results(where, split, results)
        return results

    def _resave(self) -> ResavedBase:
        # Held for as long as it takes, because one answer serves all submissions.
        with self._lock:
            if self._resaved is None:
                paths = self._recorder.paths
                log = paths.scratch / "resave.log"
                self._resaved = resave_base(self.base, self.child, paths.scratch, log, self._stop)
            return self._resaved


def _describe_subject(where: SubmissionPaths) -> str:
    """Name what is graded, for the log: a submission, an ablation or a model of the regression panel."""
    name = where.root.name
    return f"Submission {name}" if name.isdigit() else f"{where.root.parent.name}/{name[:12]}"


# Verdicts.

FAULT = "Internal error of the grading service ({}). Your model is not the cause. Submit again later."
MESSAGE_CHARACTERS = 4000
NAME_CHARACTERS = 60
"""Length of an ignored file's name in a message."""


@dataclass(frozen=True)
class SubmissionVerdict:
    """The fields that a grading adds to a submission."""

    verdict: Verdict
    message: str = ""
    score: EvalScore | None = None
    ablated: EvalScore | None = None
    ablation: str | None = None
    improvement: float | None = None
    lineage: Lineage = "unknown"
    weights_sha256: str | None = None
    same_as: int | None = None

    def apply_to(self, submission: Submission, queue_seconds: float, grading_seconds: float) -> Submission:
        """Return the submission with its verdict."""
        replaced = {field.name for field in fields(self)} | {"queue_seconds", "grading_seconds"}
        return Submission(
            **submission.model_dump(exclude=replaced),
            verdict=self.verdict,
            message=" ".join(filter(None, (self.message, _name_left_out(submission.left_out)))),
            score=self.score,
            ablated=self.ablated,
            ablation=self.ablation,
            improvement=self.improvement,
            lineage=self.lineage,
            weights_sha256=self.weights_sha256,
            same_as=self.same_as,
            queue_seconds=queue_seconds,
            grading_seconds=grading_seconds,
        )


def repeat_verdict(earlier: Submission) -> SubmissionVerdict:
    reason = earlier.message.removesuffix(_name_left_out(earlier.left_out))  # this one names its own
    message = f"Same files as submission {earlier.id}, so same verdict. {reason}".strip()
    assert earlier.verdict is not None
    return SubmissionVerdict(
        earlier.verdict,
        message,
        score=earlier.score,
        ablated=earlier.ablated,
        ablation=earlier.ablation,
        improvement=earlier.improvement,
        lineage=earlier.lineage,
        weights_sha256=earlier.weights_sha256,
        same_as=earlier.id,
    )


def score_as_baseline(baseline: EvalScore, digest: str) -> SubmissionVerdict:
    """Return the verdict of a submission with the base model's weights."""
    return SubmissionVerdict(
        "scored",
        "These are the base model's own weights, so the score is the baseline. Train, then submit.",
        score=baseline,
        improvement=0.0,
        lineage="copied",
        weights_sha256=digest,
    )


def score_verdict(
    score: EvalScore, baseline: EvalScore, ablated: EvalScore | None, origin: LineageReport, digest: str
) -> SubmissionVerdict:
    """Return the verdict of a graded submission.

    Only the gain from training counts, not what the base model's own weights gain with the same files.
    """
    reference = max(baseline.value, ablated.value) if ablated else baseline.value
    message = origin.message
    if ablated and ablated.value > baseline.value:
        figures = (
            f"This submission scores {score.value:.2f}. With its chat format and tokens, or in a usual chat "
            f"format, the base model's own weights score {ablated.value:.2f} "
            f"(baseline {baseline.value:.2f})."
        )
        if score.value <= ablated.value:
            return SubmissionVerdict(
                "rejected",
                f"The gain does not come from training. {figures} Train the weights, or keep the base "
                "model's chat format and tokens.",
                ablated=ablated,
                lineage=origin.verdict,
                weights_sha256=digest,
            )
        message = f"{figures} Only the difference counts as improvement. {message}".strip()
    return SubmissionVerdict(
        "scored",
        message,
        score=score,
        ablated=ablated,
        improvement=score.value - reference,
        lineage=origin.verdict,
        weights_sha256=digest,
    )


def _name_left_out(names: tuple[str, ...]) -> str:
    shown = (name if len(name) <= NAME_CHARACTERS else f"{name[:NAME_CHARACTERS]}…" for name in names)
    return f"Ignored, because not part of a model: {', '.join(shown)}." if names else ""


def shorten_error(error: Agent2RLError) -> str:
    """Return the message for the agent and the record, limited so that long file names cannot fill it."""
    text = str(error)
    return text if len(text) <= MESSAGE_CHARACTERS else text[:MESSAGE_CHARACTERS] + " … (cut)"


def hide_numbers(text: str) -> str:
    """Replace every number by N, because a length or a count could reveal an example."""
    return re.sub(r"\d(?:[\d.,_]*\d)?", "N", text)
