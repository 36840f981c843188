"""Records of gradings: settings, results, submissions, manifests, calibration and contamination."""

from collections.abc import Collection, Iterable
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, Field, JsonValue, model_validator

from agent2rl.core.base_record import Record as Record

Split = Literal["feedback", "heldout"]

Part = Literal["train", "feedback", "heldout", "test"]
"""The examples that a score averages over; `test` is feedback and held-out together."""

Verdict = Literal[
    "scored",
    "rejected",  # it breaks a rule, or none of its gain comes from training
    "failed",  # its grading produced no score
    "expired",  # it was not graded within the time for gradings after the agent's end
]

Lineage = Literal["derived", "copied", "foreign", "unknown"]

Percent = Annotated[float, Field(ge=0, le=100)]

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Interval(Record):
    low: float
    high: float
    method: Literal["wilson", "bootstrap", "paired-bootstrap", "newcombe"]
    level: float = 0.95


class EvalSettings(Record):
    """Evaluation settings that the run decides; the evaluator decides the rest."""

    seed: int = 0
    samples: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class SampledAnswer(Record):
    """One answer and its score."""

    output: str
    score: Share
    note: str = ""
    """A remark for readers of the score."""


class TrajectoryTurn(Record):
    """One turn in a world: the model's action and the observation that followed. The first has no action."""

    action: str
    observation: str
    reply: str = ""
    """The start of the model's reply, if it is more than the action."""
    invalid: bool | None = None
    """Whether the world could not take the action. None: it does not say, or an earlier version graded it."""


class ExampleResult(Record):
    """The model's answer to one example. With several answers, `output` is the first, `score` the mean."""

    id: str
    output: str
    """The answer; in a world of many turns, the last action."""
    score: Share
    residual: float = 0.0
    """Observed minus expected score, if the score is an expectation; intervals take both into account."""
    note: str = ""
    attempts: tuple[SampledAnswer, ...] = ()
    """Every answer, if there were several."""
    metrics: dict[str, Share] = Field(default_factory=dict)
    """Metrics over several answers (pass@k, maj@k), other scoring rules, and metrics of a world's episode."""
    group: str = ""
    """The kind of example, if a task has several."""
    trajectory: tuple[TrajectoryTurn, ...] = ()
    """The first episode, turn by turn, if the task is a world."""
    averaged: Annotated[int, Field(ge=0)] | None = None
    """If the score is a mean that the evaluator computed itself: over how many problems, 0 if it does not
    say. Such a result is the only one of its evaluation."""


class EvalResult(Record):
    """One result for each example, in order, and how the model was evaluated."""

    results: tuple[ExampleResult, ...]
    missing: dict[str, str] = Field(default_factory=dict)
    """Examples that could not be scored as right or wrong: id → reason."""
    how: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def one_set_of_metrics(self) -> Self:
        if len({frozenset(result.metrics) for result in self.results}) > 1:
            raise ValueError("all examples must have the same metrics, or a mean would leave some out")
        return self

    @model_validator(mode="after")
    def missing_examples_have_no_result(self) -> Self:
        if any(result.id in self.missing for result in self.results):
            raise ValueError("an example has a result or is missing, not both")
        return self


class EvalScore(Record):
    """A mean over examples, in percent, with its interval."""

    value: Percent
    ci: Interval
    n: Annotated[int, Field(ge=1)]
    missing: Annotated[int, Field(ge=0)] = 0
    """Further examples that could not be scored; they are in no mean."""
    split: Part
    metrics: dict[str, Percent] = Field(default_factory=dict)
    """Further means, such as pass@k."""
    groups: dict[str, Percent] = Field(default_factory=dict)
    """The mean over each kind of example, if there are several."""
    how: dict[str, JsonValue] = Field(default_factory=dict)
    """Prompting, sampling and other settings that affect the score."""


class WinRates(Record):
    """Win rates by a judge's preferences over a reference, in percent."""

    model: str
    n: Annotated[int, Field(ge=1)]
    missing: Annotated[int, Field(ge=0)] = 0
    """Comparisons that failed; they are in no mean."""
    absent: Annotated[int, Field(ge=0)] = 0
    """Official instructions without a comparison in the file."""
    win_rate: Percent
    standard_error: float
    length_controlled: Percent | None = None
    """At equal length; None if the instruction difficulties are not known."""
    length_controlled_error: float | None = None
    weights: tuple[float, float, float] | None = None
    """Regression weights of length, difficulty and the model itself."""
    difficulties: str = "none"
    """Source of the difficulties."""
    difficulties_sha256: str | None = None


class JudgeUsage(Record):
    """The agent's use of a judge that it may train with."""

    judge: str
    limit: int
    questions: int
    """Questions sent to the judge; never more than the limit."""
    refused: int
    """Questions beyond the limit."""
    failed: int
    """Questions that the judge did not answer."""
    characters: int
    """Input to the judge."""
    tokens: int
    """Output of the judge."""


class Estimate(Record):
    """A mean in percent, and its standard error."""

    value: float
    error: float


class Calibration(Record):
    """A judge compared with known preferences."""

    judge: str
    n: Annotated[int, Field(ge=1)]
    missing: Annotated[int, Field(ge=0)]
    """Comparisons without an answer in one order or in both."""
    agreement: Estimate | None
    """How often the judge agrees with the known preference."""
    consistency: Estimate | None
    """How often the judge prefers the same answer in both orders."""
    first: Estimate | None
    """How often it prefers the first answer: 50 if there is no position bias."""
    longer: Estimate | None
    """How often it prefers the longer answer."""
    longer_known: Estimate | None
    """How often the known preferences prefer the longer answer."""
    by_probability: int
    """Comparisons that were read from the judge's probabilities in both orders."""


class FileHash(Record):
    path: str
    size: int
    sha256: str


class Manifest(Record):
    """Every file of a frozen submission; `sha256` covers the sorted entries."""

    files: tuple[FileHash, ...]
    sha256: str


class Submission(Record):
    """The current state of a submission. `verdict` is None while it waits or is graded."""

    id: Annotated[int, Field(ge=1)]
    path: str
    gpu: str | None = None
    accepted_at: float
    """Seconds since the epoch."""
    verdict: Verdict | None = None
    score: EvalScore | None = None
    lineage: Lineage = "unknown"
    improvement: float | None = None
    """Gain of training: over the baseline, or over `ablated` if that is higher."""
    ablated: EvalScore | None = None
    """The base model's weights with this submission's chat format, added tokens and end tokens; None if these
    are the base model's, or if there was no gain to explain."""
    ablation: str | None = None
    """Name of the folder of the ablation's answers, in `ablations/`."""
    left_out: tuple[str, ...] = ()
    """Entries of its directory that are not part of a model and were not copied."""
    same_as: int | None = None
    """An earlier submission with the same content; this one has the same verdict."""
    content_sha256: str | None = None
    weights_sha256: str | None = None
    freeze_seconds: float | None = None
    queue_seconds: float | None = None
    grading_seconds: float | None = None
    kept: bool = False
    """Whether its frozen copy is in the run directory: until its verdict, then as `keep` of the run says."""
    message: str = ""

    @property
    def verdict_at(self) -> float:
        """Time of its verdict in seconds since the epoch; without a verdict, when it was accepted."""
        waits = (self.freeze_seconds, self.queue_seconds, self.grading_seconds)
        return self.accepted_at + sum(seconds or 0.0 for seconds in waits)

    @model_validator(mode="after")
    def score_exactly_when_scored(self) -> Self:
        if (self.score is not None) != (self.verdict == "scored"):
            raise ValueError("a score exists exactly when the verdict is 'scored'")
        return self


def find_best_submission(submissions: Iterable[Submission]) -> Submission | None:
    """Return the scored submission with the largest improvement; the earliest of equals.

    Only submissions that were trained from the base model qualify.
    """
    scored = [each for each in submissions if each.score and each.lineage not in ("copied", "foreign")]
    return max(scored, key=lambda each: (each.improvement or 0.0, -each.id), default=None)


MOST_NUMBERS = 8
"""Submissions that a description of kept weights names."""


def describe_kept_weights(submissions: Collection[Submission]) -> str:
    """Say of which submissions the run directory has the frozen weights."""
    kept = [each.id for each in submissions if each.kept]
    if not kept:
        return "of no submission"
    names = ", ".join(map(str, kept[:MOST_NUMBERS]))
    more = f" and {len(kept) - MOST_NUMBERS} more" if len(kept) > MOST_NUMBERS else ""
    only = "only " if len(kept) < len(submissions) else ""
    return f"{only}of submission{'s' if len(kept) > 1 else ''} {names}{more}"


Resemblance = Literal["direction", "share", "norms"]
"""Why weights look like a sibling's: they changed in its direction, they hold an even share of its change, or
they have its norms at other places."""


class SiblingDistance(Record):
    """A submission's weights against the fingerprint of a sibling of the base model.

    Lengths are in units of the base's matrices. None where nothing could be measured.
    """

    name: str
    resemblance: Annotated[
        Resemblance | None, Field(validation_alias=AliasChoices("resemblance", "alike"))
    ] = None
    """Why the weights look like the sibling's; None if they do not. Earlier versions call it `alike`."""
    matrices: int
    """Compared matrices: those in which the sibling differs from the base."""
    matched: Share | None = None
    """Share of them that changed in the sibling's direction."""
    cosine: float | None = None
    """Of the submission's change with the sibling's; a median over the matrices, like `share` and `norms`."""
    share: float | None = None
    """How much of the sibling's change is in the submission: 1 is all of it."""
    spread: float | None = None
    """Interquartile range of this share over the matrices, relative to its median."""
    changed: float | None = None
    """Distance of the submission from the base; a root mean square, like the next two."""
    sibling_changed: float | None = None
    """Distance of the sibling from the base."""
    distance: Annotated[float | None, Field(validation_alias=AliasChoices("distance", "apart"))] = None
    """Distance of the submission from the sibling. Earlier versions call it `apart`."""
    norms: float | None = None
    """Of the matrices whose lines may have moved: distance of the sorted norms from the sibling's, in units
    of the base's distance from them. 0 for a rearranged copy of the sibling, 1 for one of the base."""
    same_norms: Share | None = None
    """Share of these matrices that have the sibling's norms."""


class HeldoutComparison(Record):
    """Held-out improvement of the chosen submission over the baseline, on the same examples."""

    improvement: float
    ci: Interval


class PanelResult(Record):
    """What training cost, or gained, on other examples than those of the run. It is no part of any score."""

    task: str
    """The other task, or `train`: training examples of the run's own task."""
    baseline: EvalScore | None = None
    best: EvalScore | None = None
    change: HeldoutComparison | None = None
    """Best minus baseline, on the same examples."""
    reason: str = ""
    """Why a score is missing."""


class SkippedFiles(Record):
    """Files that were not read, or not completely, and why."""

    reason: Annotated[str, Field(max_length=100)]
    files: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(ge=0)]


class ContaminationFinding(Record):
    """A passage of an agent's file that holds evaluation data."""

    file: Annotated[str, Field(max_length=1000)]
    split: Split
    example: str
    part: str
    """`prompt`, `target`, or a key of the example's meta."""
    words: Annotated[int, Field(ge=1)]
    """Matched words."""
    share: Annotated[float, Field(ge=0, le=1)]
    """Matched share of the part's n-grams."""
    text: Annotated[str, Field(max_length=300)]
    """The passage's words, as far as they fit."""


class ContaminationSummary(Record):
    """Whether the agent's files hold evaluation data. If `done` is false, this is unknown."""

    done: bool
    reason: str = ""
    """Why the check was not done."""
    files: Annotated[int, Field(ge=0)] = 0
    bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes read, after unpacking."""
    left_out_files: Annotated[int, Field(ge=0)] = 0
    left_out_bytes: Annotated[int, Field(ge=0)] = 0
    flagged: dict[Split, int] = Field(default_factory=dict)
    """Examples of each split that were found."""
    flagged_files: Annotated[int, Field(ge=0)] = 0

    @property
    def contaminated(self) -> bool | None:
        """Whether evaluation data was found; None if there was no check, so that it is unknown.

        Everything that ranks or averages over runs uses this to leave contaminated ones out.
        """
        return any(self.flagged.values()) if self.done else None


class Contamination(ContaminationSummary):
    """The full result of the contamination check."""

    ngram_words: int = 0
    share: float = 0
    run_words: int = 0
    """A passage is a finding if it matches this share of a part's n-grams or this many words in a row."""
    examples: int = 0
    unchecked: int = 0
    """Examples that are too short, or too similar to the agent's own data, to be searched for."""
    tensor_bytes: int = 0
    """Size of safetensors files, which are not read."""
    left_out: tuple[SkippedFiles, ...] = ()
    found: Annotated[int, Field(ge=0)] = 0
    """Number of pairs of a file and an example in it."""
    findings: Annotated[tuple[ContaminationFinding, ...], Field(max_length=100)] = ()
    """The first findings: held-out before feedback, long before short."""

    @property
    def summary(self) -> ContaminationSummary:
        return ContaminationSummary(
            **{name: getattr(self, name) for name in ContaminationSummary.model_fields}
        )
