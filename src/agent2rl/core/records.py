"""Typed records of everything that is stored on disk, sent over the wire or read from a configuration.

Records are frozen and reject unknown keys. Scores are percentages; an unknown number is None, never 0.
"""

from typing import Annotated, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, JsonValue

from agent2rl.core.base_record import Record as Record
from agent2rl.core.grading_records import (
    ContaminationSummary,
    EvalScore,
    FileHash,
    HeldoutComparison,
    JudgeUsage,
    PanelResult,
    Percent,
    Submission,
)
from agent2rl.core.llm import LlmUsage
from agent2rl.core.network import NetworkPolicyText, NetworkUsage

Mode = Literal["free", "sft-only", "rl-oriented", "rl-only", "multi"]


def _translate_protocol_name(value: object) -> object:
    """Translate the specifications of earlier versions, which call the default protocol `heldout`."""
    return "default" if value == "heldout" else value


ScoringProtocol = Annotated[Literal["default", "paper"], BeforeValidator(_translate_protocol_name)]
PROTOCOLS: tuple[ScoringProtocol, ...] = ("default", "paper")


def _translate_expert_flag(value: object) -> object:
    """Translate the specifications of earlier versions, which record whether there is an expert."""
    return {True: "full", False: "none"}[value] if isinstance(value, bool) else value


ExpertHelp = Annotated[
    Literal["full", "none"] | Annotated[int, Field(ge=1)], BeforeValidator(_translate_expert_flag)
]
"""How much expert help the agent of an interactive task gets. `full`: an expert that plays any training game.
A number: so many of its games as files, and no expert. `none`: neither."""
Clock = Literal["all", "training"]
"""What counts as the agent's time. `all`: wall time from its start. `training`: wall time without the time in
which a submission is frozen, queued, checked or graded."""
TRAINING_CLOCK_WALL_FACTOR = 2
"""Wall time limit on the training clock, in budgets. An agent can work while a submission is graded, so
without a limit it could extend its time with further submissions."""
KeptWeights = Literal["best", "all", "none"]
"""Which submissions' frozen weights stay in the run directory once they have a verdict. `best`: those of the
best so far on the feedback split. `all`: all that differ. `none`: like `best` until the held-out grading,
which needs them, and none after it. Those of expired submissions stay too, except with `none`."""
Ending = Literal[
    "completed",  # the agent exited normally
    "deadline",  # the budget's wall time ran out
    "agent-failed",  # the agent exited with an error
    "out-of-memory",
    "too-many-processes",
    "disk-full",
    "budget-exhausted",  # the budget's tokens, dollars or GPU time ran out
    "login-failed",  # the driver LLM's provider rejected the API key
    "rate-limited",  # the provider's rate limit held until the agent gave up
    "driver-failed",  # the driver LLM failed or stopped answering until the agent gave up
    "interrupted",  # the user stopped the run
    "failed",  # the harness could not run it, or the agent did nothing; see `reason`
]


class Budget(Record):
    """What the agent may spend."""

    wall_seconds: Annotated[float, Field(gt=0)]
    """The agent's time. The run's clock says whether grading and queueing are included."""
    submissions: Annotated[int, Field(ge=1)] | None = None
    """Accepted submissions, whatever their verdict."""
    environment_steps: Annotated[int, Field(ge=1)] | None = None
    """Steps in the task's world, served and claimed together."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Input and output tokens of the driver LLM."""
    usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Cost of the driver LLM, by the price table."""
    gpu_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The number of the agent's GPUs times its wall time, on every clock."""

    def max_wall_seconds(self, clock: Clock) -> float:
        """Return the most wall time that an agent with this budget can have."""
        return self.wall_seconds * (TRAINING_CLOCK_WALL_FACTOR if clock == "training" else 1)


class Limits(Record):
    """Machine resources that one sandbox may use."""

    memory_bytes: Annotated[int, Field(gt=0)]
    """Resident memory of all its processes together."""
    disk_bytes: Annotated[int, Field(gt=0)]
    """Workspace, HOME and /tmp together."""
    processes: Annotated[int, Field(gt=0)]
    """Processes alive at once (threads are not counted)."""


class RequestedLimits(Record):
    """Requested limits. Unset fields default to a share of the machine that the run starts on."""

    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    disk_bytes: Annotated[int, Field(gt=0)] | None = None
    processes: Annotated[int, Field(gt=0)] | None = None


class PromptTemplates(Record):
    """Evaluation prompts that replace the task's own."""

    name: str
    """Recorded with the result."""
    chat: str | None = None
    """For a model with a chat template; None: the task's own."""
    plain: str | dict[str, str] | None = None
    """For a model without one, which continues the text; a world may have one for each kind of example."""


class RunSpec(Record):
    """Everything that determines a run. Equal specs are the same experiment."""

    task: str
    agent: str
    driver: str | None = None
    """The LLM that drives the agent; None if the agent is a plain program."""
    continues: Annotated[int, Field(ge=0)] = 0
    """How many times an agent that exits with budget remaining is told to continue."""
    record_driver: str | None = None
    """File to record every exchange with the driver in."""
    replay_driver: str | None = None
    """Such a recording, which answers in place of the driver."""
    model: str
    engine: str
    sandbox: str = "bubblewrap"
    """As requested; `auto`: the first that works. `Isolation.sandbox` is the one that was used."""
    mode: Mode = "free"
    protocol: ScoringProtocol = "default"
    """`default`: the feedback split scores submissions, the held-out split ranks. `paper`: the published test
    set does both, with the task's published profile."""
    profile: str | None = None
    """The published profile that evaluates under the paper's protocol, with its version. None: the task's own
    evaluation, as in runs of earlier versions, where `paper` only chose the split."""
    budget: Budget
    clock: Clock = "all"
    """What counts as the agent's time. Runs with different clocks are never ranked together."""
    limits: RequestedLimits | None = None
    """Unset fields default to a share of the machine. The ledger records the effective limits."""
    grading_gpus: str | None = None
    """GPUs kept for grading: names as in CUDA_VISIBLE_DEVICES, or `last:N` of the run's GPUs. None: the agent
    and grading share all GPUs. Not part of the experiment's identity, because GPUs have other names
    elsewhere."""
    keep: KeptWeights = "best"
    """Which submissions' weights are kept. Not part of the experiment's identity, because no score depends on
    it."""
    grading_seconds: Annotated[float, Field(gt=0)] = 3600
    """Time limit of one grading, and of all gradings together that are still waiting when the agent ends."""
    seed: int = 0
    samples: Annotated[int, Field(ge=1)] = 1
    """Answers sampled per evaluation question: one (greedy), or several at a temperature."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """None: greedy for one sample, the task's own for several."""
    prompts: PromptTemplates | None = None
    """None: the task's own."""
    search: str | None = None
    """Search backend, for a task whose evaluation searches and has no corpus of its own."""
    record_searches: str | None = None
    """File that caches every search and its results; recorded searches are not repeated."""
    judge: str | None = None
    """The model that scores answers; None: the task's own rule."""
    train_judge: str | None = None
    """Another judge model, which the agent may query while it trains."""
    train_judge_questions: Annotated[int, Field(ge=1)] = 10_000
    """How many questions the agent may put to `train_judge`."""
    siblings: tuple[str, ...] = ()
    """Fingerprint files of models that submissions are compared with, beside those in the cache. Not part of
    the experiment's identity: they change nothing for an agent that trains the base model."""
    also: tuple[str, ...] = ()
    """Regression panel: further tasks on whose held-out splits the base model and the best submission are
    graded after the run; `train` is a sample of the task's own training examples. Not part of the
    experiment's identity, because no score of the run depends on it."""
    expert: ExpertHelp = "full"
    """Runs with different expert help are never ranked together. Always `full` if the task has no expert."""
    network: NetworkPolicyText = "none"
    """What the agent may reach: none, packages, allow:HOST,… or open. Runs with different policies are never
    ranked together."""
    data_dir: str | None = None
    """Directory of the task's official files; None: the task's own source."""
    agent_python: str | None = None
    """The agent's Python environment; None: the harness's own. The ledger has the list of its packages."""
    agent_python_lock: str | None = None
    """Hash of the version and the packages of `agent_python`."""
    instructions_version: int | None = None
    """Version of the agent's instructions when the run began; None in runs of earlier versions. It is not
    part of the experiment's identity."""


TRAINING_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "vllm",
    "deepspeed",
    "bitsandbytes",
    "flash-attn",
)
"""Packages that instructions and reports name."""
PythonKind = Literal["venv", "conda", "installation"]


class PythonLock(Record):
    """The Python environment that an agent works with, as the environment's own files describe it."""

    kind: PythonKind
    path: str
    version: str
    """Version of the interpreter."""
    packages: tuple[str, ...]
    """Every installed package as NAME==VERSION, sorted."""
    editable: tuple[str, ...] = ()
    """Names of packages that are installed in place from elsewhere. No sandbox shows them."""
    sha256: str
    """Hash of the version and the packages; equal environments have the same one on every machine."""

    @property
    def training_packages(self) -> dict[str, str]:
        """Versions of the packages that matter for training, if a sandbox shows them."""
        versions = dict(line.split("==", 1) for line in self.packages)
        return {
            name: versions[name]
            for name in TRAINING_PACKAGES
            if name in versions and name not in self.editable
        }


class RunFiles(Record):
    """Hashes of every file of a run directory that was final when the run was closed.

    Files that are pinned in another way or are not part of the record are left out: see
    `record.paths.hash_run_files`.
    For events.jsonl, `size` and `sha256` cover what was written until then.
    """

    files: tuple[FileHash, ...]


class Promise(Record):
    """One isolation promise of a sandbox, and whether the self-test saw it hold."""

    name: str
    holds: bool
    hint: Annotated[str, Field(validation_alias=AliasChoices("hint", "mend"))] = ""
    """What to do if it does not hold, or why it is not made. Runs of earlier versions call it `mend`."""
    remedy: str = ""
    """The part of the hint that is a command or a request, if there is one."""
    promised: bool = True
    """False if this sandbox does not make the promise on this machine, whatever the self-test saw."""


IsolationLevel = Literal["full", "partial", "none"]


class Isolation(Record):
    sandbox: str
    isolates: bool
    """False if the sandbox promises nothing."""
    promises: tuple[Promise, ...] = ()
    reason: str = ""
    """Why `--sandbox auto` chose this sandbox; empty if it was named."""
    remedy: str = ""
    """What would get the best of the sandboxes that `--sandbox auto` tried before, which do not work."""

    @property
    def broken(self) -> tuple[Promise, ...]:
        return tuple(promise for promise in self.promises if promise.promised and not promise.holds)

    @property
    def not_kept(self) -> tuple[Promise, ...]:
        """The promises that the sandbox does not make."""
        return tuple(promise for promise in self.promises if not promise.promised)

    @property
    def level(self) -> IsolationLevel:
        if not self.isolates:
            return "none"
        return "partial" if self.not_kept else "full"


class Asset(Record):
    """An input of the run, pinned by its content."""

    name: str
    source: str
    sha256: str


class TimeBreakdown(Record):
    """How the run's time was spent, in seconds."""

    agent: float
    """The agent's wall time."""
    queue: float
    """Sum over all submissions, so overlapping ones count several times."""
    grading: float
    """Sum over all submissions."""
    training: float | None = None
    """The agent's wall time while the harness held no submission. None in runs of earlier versions."""
    gpu: float | None = None
    """GPU seconds: the number of the agent's GPUs times its wall time. None if it had no GPU."""


class RolloutCounts(Record):
    """Counts of episodes and steps in a world."""

    episodes: Annotated[int, Field(ge=0)] = 0
    """Episodes started."""
    steps: Annotated[int, Field(ge=0)] = 0
    successes: Annotated[int, Field(ge=0)] = 0
    """Episodes won."""

    def __add__(self, other: Self) -> Self:
        names = type(self).model_fields
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def subtract(self, other: Self) -> Self:
        """Return the difference, at least 0."""
        names = type(self).model_fields
        return type(self)(**{name: max(0, getattr(self, name) - getattr(other, name)) for name in names})


class Rollouts(Record):
    """The agent's rollouts in the task's world during training."""

    claimed: RolloutCounts = RolloutCounts()
    """In the agent's own processes, as they reported them."""
    served: Annotated[RolloutCounts, Field(validation_alias=AliasChoices("served", "witnessed"))] = (
        RolloutCounts()
    )
    """In the world that the harness serves. Runs of earlier versions call it `witnessed`."""
    replayed: RolloutCounts = RolloutCounts()
    """Of those claimed: the harness replayed their actions and got the same reward."""
    refuted: RolloutCounts = RolloutCounts()
    """Of those claimed: the harness replayed their actions and got another result."""

    @property
    def unverified(self) -> RolloutCounts:
        """Claims that were not replayed."""
        return self.claimed.subtract(self.replayed + self.refuted)

    @property
    def witnessed(self) -> RolloutCounts:
        """What the harness saw itself: served or replayed."""
        return self.served + self.replayed

    @property
    def played(self) -> RolloutCounts:
        """Everything: served or claimed."""
        return self.served + self.claimed

    def count_steps_left(self, limit: int | None) -> int | None:
        """Return how many steps of this limit are left; None without one."""
        return None if limit is None else max(0, limit - self.played.steps)

    def __add__(self, other: Self) -> Self:
        names = type(self).model_fields
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})


class RunResult(Record):
    """The result of a run; written last."""

    run_id: str
    spec: RunSpec
    ending: Ending
    reason: str = ""
    started_at: float
    ended_at: float
    isolation: Isolation | None = None
    assets: tuple[Asset, ...] = ()
    baseline: EvalScore | None = None
    """Score of the untouched model on the split that scores submissions."""
    best: Submission | None = None
    """Chosen by the feedback split."""
    baseline_heldout: EvalScore | None = None
    best_heldout: EvalScore | None = None
    ablated_heldout: EvalScore | None = None
    """The base model's weights with the best submission's other files; None if those are the base model's."""
    heldout: HeldoutComparison | None = None
    """Improvement over `baseline_heldout`, or over `ablated_heldout` if that is higher."""
    optimism_gap: float | None = None
    """Feedback improvement minus held-out improvement: the selection bias of choosing by feedback."""
    score: Percent | None = None
    """The score that ranks: held-out score of the best submission; under the paper's protocol its test-set
    score. What the base model's weights gain from the best submission's other files is subtracted, because
    it is not training."""
    improvement: float | None = None
    also: tuple[PanelResult, ...] = ()
    """The regression panel: the same models on other examples. It is no part of `score`."""
    submissions: int = 0
    scored: int = 0
    clock: TimeBreakdown | None = None
    contamination: ContaminationSummary | None = None
    """None if the agent never started."""
    rollouts: Rollouts | None = None
    """None if the task has no world or the agent never started."""
    train_judge: JudgeUsage | None = None
    """None if the agent had no judge to train with or never started."""
    usage: LlmUsage | None = None
    """Usage of the driver LLM; None if there is none."""
    judge_usage: LlmUsage | None = None
    """Usage of the grading judge; None if there is none, if it runs on this machine, or if the run was
    resumed, because usage before the resume is not known."""
    network: NetworkUsage | None = None
    """What the agent did with its network; None without one."""
    rounds: int = 0
    """How many times the agent was started."""
    resumed: Annotated[int, Field(ge=0)] = 0
    """How many times the harness died and another one resumed the run."""
    dead_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Time in which no harness worked on the run. It counts towards no budget."""

    @property
    def ended_well(self) -> bool:
        return self.ending in ("completed", "deadline")

    @property
    def contaminated(self) -> bool | None:
        """None: unknown."""
        return self.contamination.contaminated if self.contamination else None


class LedgerEntry(Record):
    """One link of the hash chain; `hash` covers all other fields."""

    index: int
    time: float
    kind: str
    data: dict[str, JsonValue]
    previous: str
    hash: str
