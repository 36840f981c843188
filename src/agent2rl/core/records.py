"""Records: everything that is on disk, on the wire or in a configuration.

Frozen, and strict about unknown keys. Scores are percentages; an unknown number is None, never 0.
"""

from typing import Annotated, Literal, Self

from pydantic import AliasChoices, Field, JsonValue

from agent2rl.core.grading_records import (
    ContaminationSummary,
    EvalScore,
    FileHash,
    HeldoutComparison,
    JudgeUsage,
    Percent,
    Submission,
)
from agent2rl.core.llm import LlmUsage
from agent2rl.core.record import Record as Record

Mode = Literal["free", "sft-only", "rl-only", "multi"]
ScoringProtocol = Literal["heldout", "paper"]
Ending = Literal[
    "completed",  # the agent ended by itself, in order
    "deadline",  # the budget's time ran out
    "agent-failed",  # the agent ended with an error
    "out-of-memory",
    "too-many-processes",
    "disk-full",
    "budget-exhausted",  # the budget's tokens or dollars ran out
    "login-failed",  # the driver LLM's provider does not know the key, or refuses it
    "rate-limited",  # the provider let no more requests through until the agent gave up
    "driver-failed",  # the driver LLM failed or fell silent until the agent gave up
    "interrupted",  # somebody stopped the run
    "failed",  # the harness could not run it: the reason says why
]


class Budget(Record):
    """What the agent may spend."""

    wall_seconds: Annotated[float, Field(gt=0)]
    """Wall time from the agent's start; grading and queueing count."""
    submissions: Annotated[int, Field(ge=1)] | None = None
    """Accepted submissions, whatever their verdict."""
    environment_steps: Annotated[int, Field(ge=1)] | None = None
    """Steps in the task's world, witnessed and claimed together."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Of the driver LLM, read and written."""
    usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """For the driver LLM, by the price table."""


class Limits(Record):
    """What one sandbox may use of the machine."""

    memory_bytes: Annotated[int, Field(gt=0)]
    """Resident memory of all its processes together."""
    disk_bytes: Annotated[int, Field(gt=0)]
    """Workspace, HOME and /tmp together."""
    processes: Annotated[int, Field(gt=0)]
    """Processes alive at once (threads are not counted)."""


class RequestedLimits(Record):
    """What somebody says of them. The rest is for the machine to say that the run begins on."""

    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    disk_bytes: Annotated[int, Field(gt=0)] | None = None
    processes: Annotated[int, Field(gt=0)] | None = None


class PromptTemplates(Record):
    """How a model is asked, in place of a task's own words."""

    name: str
    """For the record."""
    chat: str | None = None
    """For a model with a chat template; None: the task's own."""
    plain: str | dict[str, str] | None = None
    """For one without, which goes on from it; in a world there may be one for each kind of example."""


class RunSpec(Record):
    """All that decides a run. Equal specs are the same experiment."""

    task: str
    agent: str
    driver: str | None = None
    """The LLM that does the agent's thinking, where it is not a plain program."""
    continues: Annotated[int, Field(ge=0)] = 0
    """How often an agent that ends with budget left is told to go on."""
    record_driver: str | None = None
    """A file that keeps every exchange with the driver."""
    replay_driver: str | None = None
    """Such a file, which answers in the driver's place."""
    model: str
    engine: str
    sandbox: str = "bubblewrap"
    mode: Mode = "free"
    protocol: ScoringProtocol = "heldout"
    """`heldout`: feedback answers, held-out ranks. `paper`: the whole test set does both."""
    budget: Budget
    limits: RequestedLimits | None = None
    """What is not said is a share of the machine. The ledger notes what it came to."""
    grading_seconds: Annotated[float, Field(gt=0)] = 3600
    """Time limit of one grading, and of all together that wait when the agent ends."""
    seed: int = 0
    samples: Annotated[int, Field(ge=1)] = 1
    """Answers drawn to each question of an evaluation: one, greedily, or several, at a temperature."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """None: greedy for one sample, the task's own for several."""
    prompts: PromptTemplates | None = None
    """None: the task's own."""
    search: str | None = None
    """What is searched, where a task's evaluation searches and brings nothing of its own."""
    record_searches: str | None = None
    """A file that keeps every search and its results; what it holds is not searched again."""
    judge: str | None = None
    """The model that decides what an answer is worth; None: the task's own rule does."""
    train_judge: str | None = None
    """Another model, which the agent may ask while it trains."""
    train_judge_questions: Annotated[int, Field(ge=1)] = 10_000
    """How often it may."""
    expert: bool = True
    """Whether the agent of an interactive task has somebody who shows how it is done."""
    data_dir: str | None = None
    """Where the task's official files lie, if not at their own source."""
    instructions_version: int | None = None
    """Version of the agent's instructions when the run began; None in runs of earlier versions. It is not
    part of the experiment's identity."""


class RunFiles(Record):
    """Every file of a run directory that was final when the run was closed.

    Left out is what is pinned in another way or belongs to nobody's record: see `store.run_files`. Of
    events.jsonl, `size` and `sha256` are of what was written until then.
    """

    files: tuple[FileHash, ...]


class Promise(Record):
    """One thing a sandbox promises, and whether it was seen to hold."""

    name: str
    holds: bool
    hint: Annotated[str, Field(validation_alias=AliasChoices("hint", "mend"))] = ""
    """What to do where it does not hold. Runs of earlier versions call it `mend`."""


class Isolation(Record):
    sandbox: str
    isolates: bool
    """False where the sandbox promises nothing."""
    promises: tuple[Promise, ...] = ()

    @property
    def broken(self) -> tuple[Promise, ...]:
        return tuple(promise for promise in self.promises if not promise.holds)


class Asset(Record):
    """An input of the run, pinned by its content."""

    name: str
    source: str
    sha256: str


class TimeBreakdown(Record):
    """Where the time went, in seconds."""

    agent: float
    queue: float
    grading: float


class RolloutCounts(Record):
    """What was played in a world."""

    episodes: Annotated[int, Field(ge=0)] = 0
    """Begun."""
    steps: Annotated[int, Field(ge=0)] = 0
    successes: Annotated[int, Field(ge=0)] = 0
    """Episodes won."""

    def __add__(self, other: Self) -> Self:
        names = type(self).model_fields
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Rollouts(Record):
    """What the agent played in the task's world while it trained."""

    claimed: RolloutCounts = RolloutCounts()
    """In the agent's own processes, as they reported it: nobody else saw it."""
    witnessed: RolloutCounts = RolloutCounts()
    """In the world that the harness serves."""

    def __add__(self, other: Self) -> Self:
        return type(self)(claimed=self.claimed + other.claimed, witnessed=self.witnessed + other.witnessed)


class RunResult(Record):
    """What came of a run; written last."""

    run_id: str
    spec: RunSpec
    ending: Ending
    reason: str = ""
    started_at: float
    ended_at: float
    isolation: Isolation | None = None
    assets: tuple[Asset, ...] = ()
    baseline: EvalScore | None = None
    """The untouched model on the split that answers submissions."""
    best: Submission | None = None
    """Chosen by the feedback split."""
    baseline_heldout: EvalScore | None = None
    best_heldout: EvalScore | None = None
    ablated_heldout: EvalScore | None = None
    """The base model's own weights under the best submission's other files; None where these are its own."""
    heldout: HeldoutComparison | None = None
    """Over `baseline_heldout`, or over `ablated_heldout` where that is higher."""
    optimism_gap: float | None = None
    """Feedback improvement minus held-out improvement: what choosing by feedback flattered."""
    score: Percent | None = None
    """What ranks: held-out score of the best; under the paper's protocol its test-set score. What the base
    model's own weights gain under the best submission's other files is taken off: it is not training."""
    improvement: float | None = None
    submissions: int = 0
    scored: int = 0
    clock: TimeBreakdown | None = None
    contamination: ContaminationSummary | None = None
    """None where the agent never started."""
    rollouts: Rollouts | None = None
    """None where the task has no world, or the agent never started."""
    train_judge: JudgeUsage | None = None
    """None where the agent had no judge to train with, or never started."""
    usage: LlmUsage | None = None
    """What the driver LLM was asked; None where there is none."""
    judge_usage: LlmUsage | None = None
    """What the judge that grades was asked; None where there is none, it runs here, or the run was resumed:
    then what it was asked before is not known."""
    rounds: int = 0
    """How often the agent was started."""
    resumed: Annotated[int, Field(ge=0)] = 0
    """How often its harness died and another one went on with it."""
    dead_seconds: Annotated[float, Field(ge=0)] = 0.0
    """In which no harness was at work on it: they count as nobody's time."""

    @property
    def ended_well(self) -> bool:
        return self.ending in ("completed", "deadline")

    @property
    def contaminated(self) -> bool | None:
        """None: unknown."""
        return self.contamination.contaminated if self.contamination else None


class LedgerEntry(Record):
    """One link of the chain; `hash` is over all the rest."""

    index: int
    time: float
    kind: str
    data: dict[str, JsonValue]
    previous: str
    hash: str
