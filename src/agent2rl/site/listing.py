"""The records of a site: what it publishes of a run, and what was checked.

Runs come from anybody. Only the fields below are published: no answers, because those contain evaluation
data, no output of the agent, and no path of the machine that ran it.
"""

import hashlib
from datetime import UTC, datetime

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.analysis.findings import ComplianceVerdict
from agent2rl.core.agent import UNTOUCHED_AGENT
from agent2rl.core.base_record import Record
from agent2rl.core.records import Clock, Ending, ExpertHelp, IsolationLevel, Mode, Promise, ScoringProtocol
from agent2rl.core.units import strip_path
from agent2rl.record.reader import RunView, State

REFERENCE_AGENTS = {
    UNTOUCHED_AGENT: "untouched model",
    "recipe": "recipe, SFT then RL",
    "recipe:sft": "recipe, SFT",
    "recipe:grpo": "recipe, RL",
}
"""Agents that need no LLM and give a score its scale. Their runs are measured and ranked like all others."""
KEY_LENGTH = 6


class RunChecks(Record):
    """What the maker of the site checked of a run. None: not checked, or not known."""

    verified: bool | None = None
    """Whether the record is unchanged since it was closed. Only verified runs are ranked."""
    fault: str | None = None
    """The first fault that the verification found."""
    head: str = ""
    """Hash of the last ledger record. It names the run: another record has another head."""
    notes: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    """Files that no hash covers."""
    reproduced: bool | None = None
    """Whether the best submission's recorded code trained it again, by the run's own additions."""
    audited: bool | None = None
    """Whether a panel of judges read the run and raised no flag, by the run's own additions."""


class RunListing(Record, allow_inf_nan=False):
    """A run as the site shows it, and as a line of its data."""

    run_id: str
    task: str
    setting: str
    """The task with everything that makes its runs incomparable: profile, expert help, clock, network."""
    protocol: ScoringProtocol
    profile: str | None
    expert: ExpertHelp
    clock: Clock
    network: str
    agent: str
    driver: str | None
    model: str
    mode: Mode
    engine: str
    seed: int
    budget_seconds: float
    started: str | None
    state: State
    ending: Ending | None
    excluded: str | None
    """Why the run says nothing about its agent; None if it does."""
    reference: str
    """The kind of reference; empty for an entry."""
    baseline: float | None
    """Score of the untouched model."""
    baseline_ranks: bool
    """Whether the baseline is on the split that ranks; if not, on the one that gave feedback."""
    score: float | None
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    real: bool | None
    """Whether the interval of the gain is above 0; None if no separate split tells."""
    submissions: int
    scored: int
    seconds: float
    seconds_to_best: float | None
    tokens: int
    usd: float | None
    points_per_usd: float | None
    gpu_seconds: float | None
    route: str | None
    compliance: ComplianceVerdict | None
    contaminated: bool | None
    warning: str
    sandbox: str
    isolation: IsolationLevel | None
    promises: tuple[Promise, ...]
    """Every isolation promise, and whether the self-test before the run saw it hold."""
    checks: RunChecks

    @property
    def promises_kept(self) -> int:
        return sum(each.promised and each.holds for each in self.promises)

    @property
    def is_counted(self) -> bool:
        """Whether it may be ranked: verified, and with a result that says something about its agent."""
        return bool(self.checks.verified) and self.excluded is None


def publish_name(name: str, source: str) -> str:
    """Return a name without the path of a machine.

    Two agents of the same file name stay two: what was a path gets a key, of the path and of where the run
    came from.
    """
    short = strip_path(name)
    return name if short == name else _add_key(short, name, source)


def _add_key(short: str, name: str, source: str) -> str:
    key = hashlib.sha256(f"{source}\0{name}".encode()).hexdigest()
    return f"{short} #{key[:KEY_LENGTH]}"


def publish_driver(driver: str, source: str) -> str:
    """Return the name of a driver without the URL of its endpoint, which may be a host of a private network.

    Two endpoints of one model stay two drivers, as with `publish_name`.
    """
    model, at, _ = driver.partition("@")
    return _add_key(model, driver, source) if at else driver


def publish_digest(digest: RunDigest, source: str) -> RunDigest:
    """Return the digest without paths of a machine and without hosts of a network."""
    names = {axis: publish_name(getattr(digest, axis), source) for axis in ("task", "agent", "model")}
    driver = publish_driver(digest.driver, source) if digest.driver else None
    also = {publish_name(task, source): change for task, change in digest.also.items()}
    return RunDigest.model_validate({**digest.model_dump(), **names, "driver": driver, "also": also})


def list_run(view: RunView, digest: RunDigest, checks: RunChecks) -> RunListing:
    """List a run; `digest` is the published one."""
    isolation = view.result.isolation if view.result else None
    cost, gain = digest.total.usd, digest.gain
    return RunListing(
        **{name: getattr(digest, name) for name in _SAME_FIELDS},
        setting=digest.task_setting,
        engine=view.spec.engine.partition(":")[0],  # what follows may be an endpoint or a path
        started=_format_start(view),
        baseline_ranks=view.spec.protocol == "paper" or bool(view.result and view.result.baseline_heldout),
        excluded=digest.excluded,
        reference=REFERENCE_AGENTS.get(digest.agent, ""),
        gain=gain,
        gain_low=digest.interval.low if digest.interval and gain is not None else None,
        gain_high=digest.interval.high if digest.interval and gain is not None else None,
        real=digest.succeeded,
        seconds=digest.total.seconds,
        seconds_to_best=digest.seconds_to_best,
        tokens=digest.total.tokens,
        usd=cost,
        points_per_usd=gain / cost if cost and gain is not None else None,
        gpu_seconds=digest.total.gpu_seconds,
        sandbox=view.used_sandbox,
        promises=isolation.promises if isolation else (),
        checks=checks,
    )


def _format_start(view: RunView) -> str | None:
    if view.result is None:
        return None
    try:
        return datetime.fromtimestamp(view.result.started_at, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # a time that no calendar has
        return None


_SAME_FIELDS = (
    *("run_id", "task", "protocol", "profile", "expert", "clock", "network", "agent", "driver", "model"),
    *("mode", "seed", "budget_seconds", "state", "ending", "baseline", "score", "submissions", "scored"),
    *("route", "compliance", "contaminated", "isolation", "warning"),
)
