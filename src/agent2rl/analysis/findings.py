"""Records of the findings on a run. Each verdict cites its evidence by id.

Times are seconds since the agent's start. Unknown values are None or `unknown`, never a guess.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, JsonValue, model_validator

from agent2rl.core.base_record import Record
from agent2rl.core.grading_records import (
    HeldoutComparison,
    Interval,
    Lineage,
    Percent,
    Share,
    Split,
    Verdict,
)
from agent2rl.core.records import Mode, Rollouts

EvidenceKind = Literal["code", "event", "log", "result", "submission", "usage", "claim"]

Route = Literal[
    "none",  # the base model itself, or weights that no training changed
    "sft",  # imitation of given answers or demonstrations
    "rejection",  # imitation of the model's own answers that passed a check: expert iteration
    "preference",  # DPO and its family: pairs of a better and a worse answer
    "policy-gradient",  # GRPO, PPO, REINFORCE on given prompts, with rewards from a rule or a judge
    "online-rl",  # the same with rollouts in the task's environment
    "other",  # any other training: merging, distillation of logits, random search
    "unknown",
]

FailureKind = Literal[
    "code-error",
    "out-of-memory",
    "diverged",
    "reward-hacking",
    "rollout-logic",
    "format-drift",
    "timeout",
    "copied",
    "rejected",
    "evaluation-failure",
    "provider-failure",
    "gave-up",
    "no-gain",  # trained and scored, but no better, for no known reason
]


class Evidence(Record):
    """A recorded fact that supports a finding."""

    id: str
    kind: EvidenceKind
    where: str
    """`revision 3, code/train.py:41`, `agent.log:120`, `submission 2`."""
    text: Annotated[str, Field(max_length=400)]
    """The quoted line, or the fact."""
    at: float | None = None


EvidenceIds = tuple[str, ...]


class RouteVerdict(Record):
    """Which training produced a submission's weights."""

    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    """In order; more than one if one training continued from another."""
    confidence: Share
    evidence: EvidenceIds = ()

    @property
    def name(self) -> str:
        return " + ".join(self.routes)


class Setting(Record):
    """A hyperparameter, or a data set used for training."""

    name: str
    """`learning_rate`, `epochs`, `batch_size`, `beta`, `group_size`, `temperature`, `max_tokens`,
    `optimizer`, `lora_rank`, `data`, `model`, …, or as the code calls it."""
    value: JsonValue
    source: Literal["code", "log", "command"]
    evidence: EvidenceIds = ()


class PrintedCurve(Record):
    """A metric that a training printed over its steps. Long series are thinned out."""

    name: str
    """`loss`, `reward`, …"""
    where: str
    points: tuple[tuple[float, float | None], ...]
    """Step and value; None if the value was not finite."""


MetricName = Literal[
    "reward",
    "loss",
    "entropy",
    "kl",
    "response_length",
    "groups_without_signal",
    "tokens_per_second",
    "learning_rate",
    "grad_norm",
    "clip_fraction",
]
METRICS: tuple[MetricName, ...] = get_args(MetricName)
"""Metrics of a training, in the order in which the report shows them."""
LogFormat = Literal["json-lines", "trainer-state", "tensorboard", "wandb", "printed"]


class TrainingSeries(Record):
    """A metric of a training over its steps. Long series are thinned out."""

    metric: MetricName
    name: str
    """As the log calls it."""
    points: tuple[tuple[float, float | None], ...]
    """Step and value; None if the value was not finite."""


class SubmissionMark(Record):
    """The step that a training had reached when a submission was made."""

    submission: int
    step: float


class TrainingCurves(Record):
    """The curves of one training, by its own log. The agent can fake a log."""

    name: str
    path: str
    """The log in the workspace; of a printed curve, its first line."""
    format: LogFormat
    series: tuple[TrainingSeries, ...]
    submissions: tuple[SubmissionMark, ...] = ()
    """Empty if the log has no times."""
    problem: str = ""
    """Why the log was not read, or not to its end."""


class Failure(Record):
    """A reason why an attempt brought no gain."""

    kind: FailureKind
    message: str
    """One sentence."""
    confidence: Share
    evidence: EvidenceIds = ()


AttemptOutcome = Literal[
    "improved",  # better than the untouched model and all earlier submissions
    "no-gain",
    "worse",  # than the untouched model
    "copied",
    "foreign",  # scored, but not trained from the base model, so it cannot be the best
    "rejected",
    "failed",
    "expired",
    "not-submitted",
    "waiting",
]


class AttemptFindings(Record):
    """An attempt: from the start or the previous submission to its own submission or the end."""

    number: int
    began: float
    ended: float
    submission: int | None = None
    verdict: Verdict | None = None
    score: float | None = None
    gain: float | None = None
    """Over the baseline, in points."""
    lineage: Lineage = "unknown"
    outcome: AttemptOutcome
    revision: int | None = None
    changed: int = 0
    """Number of files that changed since the previous attempt."""
    route: RouteVerdict | None = None
    """None if nothing was submitted and nothing was trained."""
    settings: tuple[Setting, ...] = ()
    curves: tuple[PrintedCurve, ...] = ()
    rollouts: Rollouts = Rollouts()
    """Played in this attempt."""
    training_seconds: float = 0.0
    failures: tuple[Failure, ...] = ()
    """Why it brought no gain, the likeliest reason first. For an improvement: what went wrong on the way."""


class ProcessMetrics(Record):
    """The published process metrics under their published names, and our own.

    A submission is valid if it has a score. The published code counts a score of 0 as invalid; this does not.
    """

    valid_submission_rate: Share | None
    first_valid_idx: int | None
    first_valid_delay: float | None
    score_trajectory: tuple[float | None, ...]
    """None for a submission without a score."""
    time_to_first_improvement: float | None
    time_to_best: float | None
    monotonic_ratio: Share | None
    """Share of consecutive scores that go up."""
    copy_model_count: int
    time_used_ratio: float | None
    last_submit_gap: float | None
    best_area: float | None
    """Mean gain of the best submission so far over the time budget, in points. Early gains count longer."""
    cpu_busy: float | None
    """Mean number of busy CPU cores while the agent ran."""
    gpu_busy: Share | None


class TimeSplit(Record):
    """Where the agent's time went, in seconds. Each moment counts once, for the first activity that fits."""

    training: float
    """A process of the agent kept CPU cores or a GPU busy."""
    grading: float
    """It waited for a submission to be graded."""
    stalled: float
    """Its driver LLM failed or did not respond."""
    thinking: float
    """Its driver LLM was generating."""
    coding: float
    """Its code changed, or a tool call was running."""
    idle: float


class GainFlip(Record):
    """An example on which the best submission scores differently from the untouched model."""

    id: str
    group: str
    before: Share
    after: Share
    output_before: str
    output_after: str


class Gain(Record):
    """Whether the best submission is better than the untouched model on the same examples."""

    split: Split | Literal["test"]
    comparison: HeldoutComparison
    n: int
    better: int
    worse: int
    same: int
    p_value: Share
    """From a paired test: McNemar's exact test for binary scores, else a sign permutation test."""
    test: Literal["mcnemar", "sign-permutation"]
    optimism_gap: float | None
    real: bool | None
    """The interval is above 0 on a split not used for selection; None if no such split was graded."""
    groups: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Score before and after, by kind of example."""
    flips: tuple[GainFlip, ...] = ()
    """The largest changes."""


class MeasuredFigure(Record):
    value: float
    ci: Interval | None
    """In the unit of the value; None if there are too few observations for one."""
    n: int
    """Number of observations: episodes, or examples."""


GeneralisationFigure = Literal[
    "train_gap", "win_rate", "steps_to_success", "steps_per_episode", "invalid_action_rate"
]
GENERALISATION_FIGURES: tuple[GeneralisationFigure, ...] = get_args(GeneralisationFigure)


class ModelGeneralisation(Record):
    """How one model does on examples that no training has seen, and how it plays the task's world.

    Unknown figures are None, never 0.
    """

    train_score: Percent | None = None
    """On training examples of the run's own task: of the regression panel's `train`."""
    unseen_score: Percent | None = None
    """On the examples that rank the run."""
    train_gap: MeasuredFigure | None = None
    """The first minus the second, in points. `n` counts the training examples."""
    win_rate: MeasuredFigure | None = None
    """Share of the graded episodes that were won."""
    steps_to_success: MeasuredFigure | None = None
    """Actions of an episode that was won, on average."""
    steps_per_episode: MeasuredFigure | None = None
    """Actions of an episode, on average."""
    invalid_action_rate: MeasuredFigure | None = None
    """Share of the actions in graded episodes that the world could not take."""
    unknown: dict[GeneralisationFigure, str] = Field(default_factory=dict)
    """Why a figure is None, for each that is."""

    @model_validator(mode="after")
    def every_missing_figure_has_a_reason(self) -> Self:
        missing = {name for name in GENERALISATION_FIGURES if getattr(self, name) is None}
        if missing != set(self.unknown):
            raise ValueError("a figure is known, or has a reason why it is not")
        return self


class Generalisation(Record):
    """How the untouched model and the best submission generalise, and how they play the task's world."""

    world: bool | None
    """Whether the task is a world; None if the record does not say."""
    submission: int | None
    """The best submission."""
    unseen_split: Literal["heldout", "test"]
    """The examples of `unseen_score`: under the paper's protocol those that also chose the submission."""
    episodes_split: Split | Literal["test"] | None
    """The examples whose episodes were measured; None if none were recorded."""
    baseline: ModelGeneralisation
    best: ModelGeneralisation
    training_win_rate: MeasuredFigure | None = None
    """Share won among the last episodes of the training that the harness saw; None if these are too few."""


ComplianceVerdict = Literal["kept", "broken", "unknown", "free"]
"""`free`: the mode allows anything."""


class Compliance(Record):
    """Whether the best weights were trained as the run's mode allows."""

    mode: Mode
    verdict: ComplianceVerdict
    message: str
    evidence: EvidenceIds = ()


class Contradiction(Record):
    """A claim of the agent that differs from the record."""

    attempt: int
    """As the agent numbers it."""
    claimed: str
    recorded: str
    evidence: EvidenceIds = ()


class CumulativeRollouts(Rollouts):
    """Rollouts in the environment up to a point in time."""

    at: float


class Findings(Record):
    """Everything that the analysis of a run found."""

    attempts: tuple[AttemptFindings, ...]
    trainings: tuple[TrainingCurves, ...] = ()
    """Curves of the trainings, from the logs that they wrote or printed."""
    metrics: ProcessMetrics
    time: TimeSplit | None
    """None if the agent never started, or if its processes were not recorded."""
    gain: Gain | None
    generalisation: Generalisation | None = None
    """None in reports of earlier versions."""
    compliance: Compliance
    contradictions: tuple[Contradiction, ...]
    evidence: tuple[Evidence, ...]
    summary: str
    """What happened, in sentences generated by rule from all of this."""


# Evidence. Each piece has an id, by which findings cite it.

LONGEST_QUOTE = 400


@dataclass
class EvidenceBook:
    """Collects evidence. Equal pieces share an id; ids are assigned in the order of first use."""

    _pieces: dict[tuple[str, str, str], Evidence] = field(default_factory=dict)

    def add_evidence(self, kind: EvidenceKind, where: str, text: str, at: float | None = None) -> str:
        """Add a piece of evidence and return its id."""
        key = (kind, where, text)
        if key not in self._pieces:
            name = f"E{len(self._pieces) + 1}"
            shown = text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…"
            self._pieces[key] = Evidence(id=name, kind=kind, where=where, text=shown, at=at)
        return self._pieces[key].id

    @property
    def pieces(self) -> tuple[Evidence, ...]:
        return tuple(self._pieces.values())
