"""A run as a row of the table: what is known of it without an analysis."""

from datetime import UTC, datetime

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.core.record import Record
from agent2rl.core.records import Ending, Mode, ScoringProtocol
from agent2rl.store.reader import RunView, State

STAMP = "%Y%m%d-%H%M%S"
LAST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
NAMES = 300
"""Characters of a name that are kept."""
SPARK = 24
"""Points of a sparkline, at most."""


class RunRow(Record, allow_inf_nan=False):
    run_id: str
    started: float
    """Seconds since the epoch."""
    task: str
    level: int | None
    """None: of a task that is not known here."""
    agent: str
    driver: str
    """Empty where there is none."""
    model: str
    mode: Mode
    protocol: ScoringProtocol
    seed: int
    state: State
    ending: Ending | None
    baseline: float | None
    score: float | None
    """Of the split that ranks; while it goes, the best that the agent was told."""
    gain: float | None
    low: float | None
    high: float | None
    submissions: int
    scored: int
    seconds: float | None
    """Of the agent's time; None while it goes."""
    budget_seconds: float
    contaminated: bool | None
    """None: unknown, or not over."""
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
        spark=_downsample_values([point.best for point in digest.curve]),
    )


def build_row_from_view(view: RunView, level: int | None, changed: float) -> RunRow:
    """Of a run that has no digest, or is still going."""
    spec, result = view.spec, view.result
    scores = [each.score.value for each in view.submissions if each.score]
    base = view.baseline.value if view.baseline else None
    told = max(scores, default=None)
    gain = told - base if told is not None and base is not None else None
    held = result.heldout if result and spec.protocol == "heldout" else None
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
        seed=spec.seed,
        state=view.state,
        ending=result.ending if result else None,
        baseline=base,
        score=result.score if result else told,
        gain=result.improvement if result else gain,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        submissions=len(view.submissions),
        scored=len(scores),
        seconds=result.clock.agent if result and result.clock else None,
        budget_seconds=spec.budget.wall_seconds,
        contaminated=view.contaminated,
        spark=_downsample_values(_compute_best_so_far(scores, base)),
    )


def parse_start_time(run_id: str, otherwise: float) -> float:
    """By the id that runs are given; a directory that somebody named otherwise was changed then."""
    try:
        return datetime.strptime(run_id[:15], STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return min(max(0.0, otherwise), LAST)


def _compute_best_so_far(scores: list[float], base: float | None) -> list[float]:
    best, found = 0.0, []
    for score in scores if base is not None else ():
        best = max(best, score - (base or 0.0))
        found.append(round(best, 4))
    return found


def _downsample_values(values: list[float]) -> tuple[float, ...]:
    if len(values) <= SPARK:
        return tuple(values)
    return tuple(values[at * (len(values) - 1) // (SPARK - 1)] for at in range(SPARK))
