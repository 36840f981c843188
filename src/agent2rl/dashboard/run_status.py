"""What is known of a run without an analysis: its live status, and its row in the run list."""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.analysis.findings import ComplianceVerdict
from agent2rl.core.base_record import Record
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import ExampleResult, Split, Submission, find_best_submission
from agent2rl.core.records import Ending, LedgerEntry, Mode, Rollouts, ScoringProtocol
from agent2rl.core.reproduction import ReproductionAnswer
from agent2rl.record.crash_recovery import measure_union_seconds
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView, State, read_results, read_rollouts, read_run
from agent2rl.record.untrusted_files import find_fault

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LOG_BYTES = 64 << 10


def find_run(runs: Path, name: str) -> RunPaths:
    """Find a run by its full id. Nothing outside of the runs directory is accepted, by name or by link."""
    root = runs / name
    if not NAME.fullmatch(name):
        raise UserError(f"Invalid run name: {name!r}.")
    paths = RunPaths(root)
    try:
        if not paths.spec.is_file():
            raise UserError(f"Run {name!r} does not exist.")
        if root.is_symlink():
            raise UserError(f"Run {name!r} is not shown: it is a symlink.")
        if fault := find_fault(paths):
            raise UserError(f"Run {name!r} is not shown: it {fault}.")
    except OSError as error:
        raise UserError(f"Run {name!r} cannot be read: {error.strerror}.") from error
    return paths


@dataclass(frozen=True)
class LiveRunStatus:
    """A run at this moment."""

    view: RunView
    began: float | None
    """When the agent started, in seconds since the epoch."""
    used: float | None
    """Used part of the time budget, in seconds; None before the agent starts."""
    deadline: float | None
    """When the budget ends; None unless the agent is running."""
    best: Submission | None
    log: str
    """The end of the agent's output."""
    rollouts: Rollouts | None = None
    """What was played in the task's world so far; None if nothing is known."""

    @property
    def seconds_to_best(self) -> float | None:
        """Time from the agent's start to the verdict on the best submission; None without one."""
        return self.best.verdict_at - self.began if self.best and self.began is not None else None

    @property
    def usd(self) -> float | None:
        """Cost of the driver LLM; None if there is none, or if it is not known."""
        return self.view.result.usage.usd if self.view.result and self.view.result.usage else None

    @property
    def points_per_usd(self) -> float | None:
        gain = self.view.result.improvement if self.view.result else None
        return gain / self.usd if gain is not None and self.usd else None

    @property
    def scored(self) -> int:
        return sum(each.score is not None for each in self.view.submissions)

    @property
    def rejected(self) -> int:
        return sum(each.verdict in ("rejected", "failed") for each in self.view.submissions)

    @property
    def waiting(self) -> int:
        return sum(each.verdict is None for each in self.view.submissions)


def read_live_status(paths: RunPaths, now: float | None = None) -> LiveRunStatus:
    view = read_run(paths)
    moment = time.time() if now is None else now
    starts = [each for each in view.chain.entries if each.kind == "started"]
    began = starts[0].time if starts else None
    ends = _find_deadline(view, starts[-1], moment) if starts and view.state == "running" else None
    used: float | None = None
    if view.result and view.result.clock:
        used = view.result.clock.agent
    elif ends is not None:
        used = min(view.spec.budget.wall_seconds, max(0.0, view.spec.budget.wall_seconds - (ends - moment)))
    best = view.result.best if view.result else find_best_submission(view.submissions)
    deadline = ends if ends and ends > moment else None
    log = read_file_tail(paths.agent_log)
    return LiveRunStatus(view, began, used, deadline, best, log, read_rollouts(view))


def _find_deadline(view: RunView, start: LedgerEntry, now: float) -> float | None:
    """Return when the agent's time ends, if no later submission moves the deadline."""
    deadline = start.data.get("deadline")
    if not isinstance(deadline, int | float):
        return None
    if view.spec.clock == "all":
        return float(deadline)
    intervals = [(each.accepted_at, each.verdict_at if each.verdict else now) for each in view.submissions]
    used = start.data.get("used_seconds")
    wall_seconds = view.spec.budget.max_wall_seconds(view.spec.clock)
    wall_seconds -= used if isinstance(used, int | float) else 0.0
    return min(deadline + measure_union_seconds(intervals, start.time), start.time + wall_seconds)


def compute_run_stamp(paths: RunPaths) -> str:
    """Return a stamp that differs whenever the analysis may."""
    sizes = []
    heads = (paths.ledger_head, paths.additions_head)
    for path in (*heads, paths.events, paths.usage, paths.result, paths.claims, paths.transcript):
        try:
            info = path.stat()
            sizes.append(f"{info.st_mtime_ns}-{info.st_size}")
        except OSError:
            sizes.append("")
    return " ".join(sizes)


def read_file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def read_file_tail(path: Path, most: int = LOG_BYTES) -> str:
    """Return the end of a file; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - most))
            text = file.read(most).decode(errors="replace")
    except OSError:
        return ""
    # Without the first line, of which the beginning may be missing.
    return text if size <= most else text.partition("\n")[2]


def read_answers(paths: RunPaths, submission: int, split: Split) -> list[ExampleResult]:
    """Return a submission's answers (0 is the untouched model); empty if it was not graded on the split."""
    where = paths.submission_paths(submission) if submission else paths.baseline
    path = where.results_file(split)
    if not path.resolve().is_relative_to(paths.root.resolve()):
        raise UserError(f"{path.name} is not shown: it is a symlink to outside of the run.")
    try:
        return read_results(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} of submission {submission} is damaged.") from error


# A run as a row of the run list.

STAMP = "%Y%m%d-%H%M%S"
LAST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
NAMES = 300
"""Longest name that is kept, in characters."""
SPARK = 24
"""Largest number of points of a sparkline."""


class RunRow(Record, allow_inf_nan=False):
    run_id: str
    started: float
    """Seconds since the epoch."""
    task: str
    level: int | None
    """None if the task is unknown here."""
    agent: str
    driver: str
    """Empty if the agent has none."""
    model: str
    mode: Mode
    protocol: ScoringProtocol
    profile: str = ""
    """The published profile that evaluates; empty if the task's own evaluation does."""
    expert: str = "full"
    """The level of expert help."""
    clock: str = "all"
    network: str = "none"
    seed: int
    state: State
    ending: Ending | None
    baseline: float | None
    score: float | None
    """Score on the ranking split; while the run is in progress, the best feedback score."""
    gain: float | None
    low: float | None
    high: float | None
    submissions: int
    scored: int
    seconds: float | None
    """The agent's time; None while the run is in progress."""
    budget_seconds: float
    contaminated: bool | None
    """None if unknown, or while the run is in progress."""
    compliance: ComplianceVerdict | None = None
    """Whether the run kept its mode; None until the run is analysed."""
    reproduced: ReproductionAnswer | None = None
    """Whether its best submission was trained again from its code; None if nobody tried."""
    spark: tuple[float, ...]
    """The best gain so far, submission by submission."""


def build_row_from_digest(digest: RunDigest, level: int | None, changed: float) -> RunRow:
    return RunRow(
        run_id=digest.run_id,
        started=parse_start_time(digest.run_id, changed),
        task=digest.task[:NAMES],
        level=level,
        agent=digest.agent[:NAMES],
        driver=(digest.driver or "")[:NAMES],
        model=digest.model[:NAMES],
        mode=digest.mode,
        protocol=digest.protocol,
        profile=digest.profile or "",
        expert=str(digest.expert),
        clock=digest.clock,
        network=digest.network[:NAMES],
        seed=digest.seed,
        state=digest.state,
        ending=digest.ending,
        baseline=digest.baseline,
        score=digest.score,
        gain=digest.improvement,
        low=digest.interval.low if digest.interval and digest.improvement is not None else None,
        high=digest.interval.high if digest.interval and digest.improvement is not None else None,
        submissions=digest.submissions,
        scored=digest.scored,
        seconds=digest.total.seconds,
        budget_seconds=digest.budget_seconds,
        contaminated=digest.contaminated,
        compliance=digest.compliance,
        reproduced=digest.reproduced,
        spark=_downsample_values([point.best for point in digest.curve]),
    )


def build_row_from_view(view: RunView, level: int | None, changed: float) -> RunRow:
    """Build the row of a run that has no digest or is still in progress."""
    spec, result = view.spec, view.result
    scores = [each.score.value for each in view.submissions if each.score]
    base = view.baseline.value if view.baseline else None
    best = max(scores, default=None)
    gain = best - base if best is not None and base is not None else None
    held = result.heldout if result and spec.protocol == "default" else None
    interval = held.ci if held else None
    return RunRow(
        run_id=view.paths.run_id,
        started=min(max(0.0, view.chain.entries[0].time), LAST)
        if view.chain.entries
        else parse_start_time(view.paths.run_id, changed),
        task=spec.task[:NAMES],
        level=level,
        agent=spec.agent[:NAMES],
        driver=(spec.driver or "")[:NAMES],
        model=spec.model[:NAMES],
        mode=spec.mode,
        protocol=spec.protocol,
        profile=spec.profile or "",
        expert=str(spec.expert),
        clock=spec.clock,
        network=spec.network[:NAMES],
        seed=spec.seed,
        state=view.state,
        ending=result.ending if result else None,
        baseline=base,
        score=result.score if result else best,
        gain=result.improvement if result else gain,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        submissions=len(view.submissions),
        scored=len(scores),
        seconds=result.clock.agent if result and result.clock else None,
        budget_seconds=spec.budget.wall_seconds,
        reproduced=view.best_reproduction.answer if view.best_reproduction else None,
        contaminated=view.contaminated,
        spark=_downsample_values(_compute_best_so_far(scores, base)),
    )


def parse_start_time(run_id: str, otherwise: float) -> float:
    """Return the start time in a run id; `otherwise` for a directory that does not follow the pattern."""
    try:
        return datetime.strptime(run_id[:15], STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return min(max(0.0, otherwise), LAST)


def _compute_best_so_far(scores: list[float], base: float | None) -> list[float]:
    best, bests = 0.0, []
    for score in scores if base is not None else ():
        best = max(best, score - (base or 0.0))
        bests.append(round(best, 4))
    return bests


def _downsample_values(values: list[float]) -> tuple[float, ...]:
    if len(values) <= SPARK:
        return tuple(values)
    return tuple(values[at * (len(values) - 1) // (SPARK - 1)] for at in range(SPARK))
