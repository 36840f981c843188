"""What becomes of a submission, as a value: made by the service, written down with the submission."""

from dataclasses import dataclass, fields

from agent2rl.core.records import EvalScore, Lineage, Submission, Verdict
from agent2rl.grading.lineage import LineageReport

NAME_CHARACTERS = 60
"""Of a file that was left out, in a message."""


@dataclass(frozen=True)
class SubmissionVerdict:
    """What becomes of a submission."""

    verdict: Verdict
    message: str = ""
    score: EvalScore | None = None
    ablated: EvalScore | None = None
    ablation: str | None = None
    improvement: float | None = None
    lineage: Lineage = "unknown"
    weights_sha256: str | None = None
    same_as: int | None = None

    def settle(self, waiting: Submission, queue_seconds: float, grading_seconds: float) -> Submission:
        """The submission with its verdict. A copy that was never graded stays."""
        return Submission.model_validate(
            {
                **waiting.model_dump(),
                **{field.name: getattr(self, field.name) for field in fields(self)},
                "message": " ".join(filter(None, (self.message, _name_left_out(waiting.left_out)))),
                "queue_seconds": queue_seconds,
                "grading_seconds": grading_seconds,
                "kept": self.verdict == "expired",
            }
        )


def repeat_verdict(earlier: Submission) -> SubmissionVerdict:
    message = f"The same files as submission {earlier.id}: its verdict stands. {earlier.message}".strip()
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


def score_verdict(
    score: EvalScore, baseline: EvalScore, ablated: EvalScore | None, origin: LineageReport, digest: str
) -> SubmissionVerdict:
    """Only what training gained counts, not what the base model's own weights gain under the same files."""
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
    return f"Left out, because it is no part of a model: {', '.join(shown)}." if names else ""
