"""What the analysis of a run comes to: records, each verdict with the evidence that it rests on and cites
by id.

Times are seconds since the agent's start. Unknown is None or `unknown`, never a guess.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from agent2rl.core.grading_records import HeldoutComparison, Lineage, Share, Split, Verdict
from agent2rl.core.record import Record
from agent2rl.core.records import Mode, RolloutCounts, Rollouts

EvidenceKind = Literal["code", "event", "log", "result", "submission", "usage", "claim"]

Route = Literal[
    "none",  # the base model itself, or weights that no training touched
    "sft",  # imitation of given answers or demonstrations
    "rejection",  # the model's own answers, those that a check passed, imitated: expert iteration
    "preference",  # DPO and its family: pairs of a better and a worse answer
    "policy-gradient",  # GRPO, PPO, REINFORCE on given prompts, rewards by rule or judge
    "online-rl",  # the same with rollouts in the task's world
    "other",  # it was trained, by none of these: merging, distillation of logits, random search
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
    "no-gain",  # trained, scored, and no better: nothing else is known
]


class Evidence(Record):
    """Something that can be looked at again."""

    id: str
    kind: EvidenceKind
    where: str
    """`revision 3, code/train.py:41`, `agent.log:120`, `submission 2`."""
    text: Annotated[str, Field(max_length=400)]
    """The line itself, or the fact."""
    at: float | None = None


EvidenceIds = tuple[str, ...]
"""Ids of evidence."""


class RouteVerdict(Record):
    """How a submission's weights came about."""

    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    """In their order; several where one training went on from another."""
    confidence: Share
    evidence: EvidenceIds = ()

    @property
    def name(self) -> str:
        return " + ".join(self.routes)


class Setting(Record):
    """A hyperparameter, or data that was trained on."""

    name: str
    """`learning_rate`, `epochs`, `batch_size`, `beta`, `group_size`, `temperature`, `max_tokens`,
    `optimizer`, `lora_rank`, `data`, `model`, …, or as the code calls it."""
    value: JsonValue
    source: Literal["code", "log", "command"]
    evidence: EvidenceIds = ()


class PrintedCurve(Record):
    """A series that a training printed, thinned out where it is long."""

    name: str
    """`loss`, `reward`, …"""
    where: str
    points: tuple[tuple[float, float | None], ...]
    """Step and value; None where it was no number any more."""


class Failure(Record):
    kind: FailureKind
    message: str
    """One sentence."""
    confidence: Share
    evidence: EvidenceIds = ()


AttemptOutcome = Literal[
    "improved",  # better than the untouched model and all before
    "no-gain",
    "worse",  # than the untouched model
    "copied",
    "foreign",  # scored, and not trained from the base model: it cannot be the best
    "rejected",
    "failed",
    "expired",
    "not-submitted",
    "waiting",
]


class AttemptFindings(Record):
    """From one submission, or the start, to the next, or the end."""

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
    """Files that changed since the attempt before."""
    route: RouteVerdict | None = None
    """None where nothing was submitted and nothing was trained."""
    settings: tuple[Setting, ...] = ()
    curves: tuple[PrintedCurve, ...] = ()
    rollouts: Rollouts = Rollouts()
    """Played in this attempt."""
    training_seconds: float = 0.0
    failures: tuple[Failure, ...] = ()
    """Why it brought nothing, the likeliest first; of one that improved, what went wrong on the way."""


class ProcessMetrics(Record):
    """The published process metrics, by their published names, and ours. A submission is valid when it is
    scored; where the published code counts a score of 0 as invalid, this does not."""

    valid_submission_rate: Share | None
    first_valid_idx: int | None
    first_valid_delay: float | None
    score_trajectory: tuple[float | None, ...]
    """None where a submission has no score."""
    time_to_first_improvement: float | None
    time_to_best: float | None
    monotonic_ratio: Share | None
    """Of the steps from one score to the next, those that go up."""
    copy_model_count: int
    time_used_ratio: float | None
    last_submit_gap: float | None
    best_area: float | None
    """Mean gain of the best so far over the whole budget, in points: early gains count longer."""
    cpu_busy: float | None
    """Cores busy on average while the agent ran."""
    gpu_busy: Share | None


class TimeSplit(Record):
    """Where the agent's time went, in seconds. Each moment counts once, for the first that fits."""

    training: float
    """A process of the agent computed: cores or a GPU were busy."""
    grading: float
    """It waited for a grade."""
    stalled: float
    """Its driver failed or was silent."""
    thinking: float
    """Its driver was at work."""
    coding: float
    """Its code was changing, or a tool call was under way."""
    idle: float


class GainFlip(Record):
    """An example that the best submission decides otherwise than the untouched model."""

    id: str
    group: str
    before: Share
    after: Share
    output_before: str
    output_after: str


class Gain(Record):
    """Whether the best submission is better than the untouched model, on the same examples."""

    split: Split | Literal["test"]
    comparison: HeldoutComparison
    n: int
    better: int
    worse: int
    same: int
    p_value: Share
    """Of a paired test: McNemar's exact test for right and wrong, else a permutation test of the signs."""
    test: Literal["mcnemar", "sign-permutation"]
    optimism_gap: float | None
    real: bool | None
    """The interval is above 0 on the split that chose nothing; None where no such split was graded."""
    groups: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Of each kind of example: before and after."""
    flips: tuple[GainFlip, ...] = ()
    """The first of them."""


class Compliance(Record):
    """Whether the best weights came about as the run's mode allows."""

    mode: Mode
    verdict: Literal["kept", "broken", "unknown", "free"]
    message: str
    evidence: EvidenceIds = ()


class Contradiction(Record):
    """Where the agent's own account and the record differ."""

    attempt: int
    """As the agent numbers it."""
    claimed: str
    recorded: str
    evidence: EvidenceIds = ()


class CumulativeRollouts(Record):
    """What was played in the world up to a moment."""

    at: float
    claimed: RolloutCounts
    witnessed: RolloutCounts


class Findings(Record):
    attempts: tuple[AttemptFindings, ...]
    metrics: ProcessMetrics
    time: TimeSplit | None
    """None where the agent never started, or nobody saw what its processes did."""
    gain: Gain | None
    compliance: Compliance
    contradictions: tuple[Contradiction, ...]
    evidence: tuple[Evidence, ...]
    summary: str
    """What happened, in sentences made from all of this by rule."""


# What findings rest on. Each piece has an id, and whoever says something of a run cites it.

LONGEST_QUOTE = 400


@dataclass
class EvidenceBook:
    """Collects evidence; the same piece has the same id, and ids are given in the order of asking."""

    _pieces: dict[tuple[str, str, str], Evidence] = field(default_factory=dict)

    def add_evidence(self, kind: EvidenceKind, where: str, text: str, at: float | None = None) -> str:
        """The id of a piece of evidence."""
        key = (kind, where, text)
        if key not in self._pieces:
            name = f"E{len(self._pieces) + 1}"
            shown = text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…"
            self._pieces[key] = Evidence(id=name, kind=kind, where=where, text=shown, at=at)
        return self._pieces[key].id

    @property
    def pieces(self) -> tuple[Evidence, ...]:
        return tuple(self._pieces.values())
