"""Records of gradings: settings, results, submissions, manifests, calibration and contamination."""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from agent2rl.core.record import Record as Record

Split = Literal["feedback", "heldout"]

Part = Literal["train", "feedback", "heldout", "test"]
"""What a score is a mean over; `test` is feedback and held-out together."""

Verdict = Literal[
    "scored",
    "rejected",  # it breaks a rule, or nothing of its gain comes from training
    "failed",  # its grading did not come to a score
    "expired",  # its turn did not come within the time for gradings after the agent's end
]

Lineage = Literal["derived", "copied", "foreign", "unknown"]

Percent = Annotated[float, Field(ge=0, le=100)]

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Interval(Record):
    low: float
    high: float
    method: Literal["wilson", "bootstrap", "paired-bootstrap"]
    level: float = 0.95


class EvalSettings(Record):
    """What a run decides about an evaluation; the rest is the evaluator's."""

    seed: int = 0
    samples: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class SampledAnswer(Record):
    """One answer and what it was worth."""

    output: str
    score: Share
    note: str = ""
    """Whatever a reader of the score should know about this one."""


class TrajectoryTurn(Record):
    """One exchange with a world: what the model did and what it saw then. The first has no action."""

    action: str
    observation: str
    reply: str = ""
    """The beginning of what the model wrote, where that is not the action alone."""


class ExampleResult(Record):
    """What the model said to one example. Of several answers, `output` is the first and `score` the mean."""

    id: str
    output: str
    """The answer; in a world of many turns, the last action."""
    score: Share
    residual: float = 0.0
    """What was seen less what was expected, where the score is an expectation: intervals are over both."""
    note: str = ""
    attempts: tuple[SampledAnswer, ...] = ()
    """Every answer, where there were several."""
    metrics: dict[str, Share] = Field(default_factory=dict)
    """What several answers are worth together (pass@k, maj@k), and what else a world says of an episode."""
    group: str = ""
    """The kind of example, where a task has several."""
    trajectory: tuple[TrajectoryTurn, ...] = ()
    """The first episode, turn by turn, where the task is a world."""


class EvalResult(Record):
    """One result for each example, in order, and how they were asked."""

    results: tuple[ExampleResult, ...]
    missing: dict[str, str] = Field(default_factory=dict)
    """Examples of which nothing can be said, neither right nor wrong: id → why."""
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
    """Further examples, of which nothing could be said; they are in no mean."""
    split: Part
    metrics: dict[str, Percent] = Field(default_factory=dict)
    """Further means, such as pass@k."""
    groups: dict[str, Percent] = Field(default_factory=dict)
    """The mean over each kind of example, where there are several."""
    how: dict[str, JsonValue] = Field(default_factory=dict)
    """Prompting, sampling and whatever else decided it."""


class WinRates(Record):
    """What a judge's preferences over a reference come to, in percent."""

    model: str
    n: Annotated[int, Field(ge=1)]
    missing: Annotated[int, Field(ge=0)] = 0
    """Comparisons that failed, which are in no mean."""
    absent: Annotated[int, Field(ge=0)] = 0
    """Official instructions that the file has no comparison for."""
    win_rate: Percent
    standard_error: float
    length_controlled: Percent | None = None
    """At equal length; None where instruction difficulties are not known."""
    length_controlled_error: float | None = None
    weights: tuple[float, float, float] | None = None
    """What the regression gives length, difficulty and the model itself."""
    difficulties: str = "none"
    """Whose difficulties these are."""
    difficulties_sha256: str | None = None


class JudgeUsage(Record):
    """What a judge that the agent may train with was asked."""

    judge: str
    limit: int
    questions: int
    """Those that were put to it; it is never more than the limit."""
    refused: int
    """Those beyond the limit."""
    failed: int
    """Questions that it did not answer."""
    characters: int
    """What it read."""
    tokens: int
    """What it said."""


class Estimate(Record):
    """A mean in percent, and its standard error."""

    value: float
    error: float


class Calibration(Record):
    """A judge held against preferences that are known."""

    judge: str
    n: Annotated[int, Field(ge=1)]
    missing: Annotated[int, Field(ge=0)]
    """Comparisons to which it gave no answer in one order or in both."""
    agreement: Estimate | None
    """How often it is on the same side."""
    consistency: Estimate | None
    """How often it is on the same side in both orders."""
    first: Estimate | None
    """The share of the first answer: 50 where its place means nothing."""
    longer: Estimate | None
    """The share of the longer answer."""
    longer_known: Estimate | None
    """The same of the known preferences."""
    by_probability: int
    """Comparisons that were read from the judge's probabilities in both orders."""


class FileHash(Record):
    path: str
    size: int
    sha256: str


class Manifest(Record):
    """Every file of a frozen submission; `sha256` is over the sorted entries."""

    files: tuple[FileHash, ...]
    sha256: str


class Submission(Record):
    """One submission as it stands. `verdict` is None while it waits or is graded."""

    id: Annotated[int, Field(ge=1)]
    path: str
    gpu: str | None = None
    accepted_at: float
    """Seconds since the epoch."""
    verdict: Verdict | None = None
    score: EvalScore | None = None
    lineage: Lineage = "unknown"
    improvement: float | None = None
    """Over the baseline, or over `ablated` where that is higher: what training gained."""
    ablated: EvalScore | None = None
    """The base model's own weights under this submission's chat format, added tokens and end tokens; None
    where these are the base model's, or where there was no gain to explain."""
    ablation: str | None = None
    """Names the folder of its answers, in `ablations/`."""
    left_out: tuple[str, ...] = ()
    """Entries of its directory that are no part of a model, and were not copied."""
    same_as: int | None = None
    """An earlier submission with the same content, whose verdict this one shares."""
    content_sha256: str | None = None
    weights_sha256: str | None = None
    freeze_seconds: float | None = None
    queue_seconds: float | None = None
    grading_seconds: float | None = None
    kept: bool = False
    """Whether its frozen copy stays: while it waits, and where it was the best so far when it was graded."""
    message: str = ""

    @property
    def verdict_at(self) -> float:
        """When its verdict came, in seconds since the epoch; of one without, when it was accepted."""
        waits = (self.freeze_seconds, self.queue_seconds, self.grading_seconds)
        return self.accepted_at + sum(seconds or 0.0 for seconds in waits)

    @model_validator(mode="after")
    def score_exactly_when_scored(self) -> Self:
        if (self.score is not None) != (self.verdict == "scored"):
            raise ValueError("a score exists exactly when the verdict is 'scored'")
        return self


class HeldoutComparison(Record):
    """Held-out improvement of the chosen submission over the baseline, on the same examples."""

    improvement: float
    ci: Interval


class SkippedFiles(Record):
    """Files that were not read, or not to their end, and why."""

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
    """Matched."""
    share: Annotated[float, Field(ge=0, le=1)]
    """Of the part's n-grams."""
    text: Annotated[str, Field(max_length=300)]
    """The passage's words, as far as they fit."""


class ContaminationSummary(Record):
    """Whether evaluation data lies in what the agent left. Where `done` is false nothing is known of it."""

    done: bool
    reason: str = ""
    """Why it was not done."""
    files: Annotated[int, Field(ge=0)] = 0
    bytes: Annotated[int, Field(ge=0)] = 0
    """Read, after unpacking."""
    left_out_files: Annotated[int, Field(ge=0)] = 0
    left_out_bytes: Annotated[int, Field(ge=0)] = 0
    flagged: dict[Split, int] = Field(default_factory=dict)
    """Examples of each split that were found."""
    flagged_files: Annotated[int, Field(ge=0)] = 0

    @property
    def contaminated(self) -> bool | None:
        """Whether evaluation data was found; None where nobody searched, so that it is unknown.

        Everything that ranks or averages over runs leaves contaminated ones out by this.
        """
        return any(self.flagged.values()) if self.done else None


class Contamination(ContaminationSummary):
    """All that the check has to say."""

    ngram_words: int = 0
    share: float = 0
    run_words: int = 0
    """A passage is a finding from this share of a part's n-grams on, or from so many words in a row."""
    examples: int = 0
    unchecked: int = 0
    """Examples too short, or too much like what the agent was given, to be looked for."""
    tensor_bytes: int = 0
    """Of safetensors files, which are not read."""
    left_out: tuple[SkippedFiles, ...] = ()
    found: Annotated[int, Field(ge=0)] = 0
    """Pairs of a file and an example in it."""
    findings: Annotated[tuple[ContaminationFinding, ...], Field(max_length=100)] = ()
    """The first of them: held-out before feedback, long before short."""

    @property
    def summary(self) -> ContaminationSummary:
        return ContaminationSummary(
            **{name: getattr(self, name) for name in ContaminationSummary.model_fields}
        )
