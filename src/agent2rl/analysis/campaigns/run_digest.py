"""Digest a run into the few kilobytes that statistics over many runs need.

The gain of a run. The result of a run is the submission with the best feedback score or, if none is better
than the untouched model there, the untouched model itself.

- The gain is the improvement of that submission: on the held-out split, where it may be negative, or under
  the paper's protocol on the test set, which also selected it.
- A run that ends with the untouched model has a gain of 0. This includes agents that failed, gave up, or ran
  out of time, money, memory or disk before they had anything better: that is the agent's performance.
- A run that was broken by the harness, the machine, the user or the provider says nothing about the agent.
  It has no gain instead of 0. `excluded` has the reason, and all statistics count such runs.
- A run that submitted a model which was trained elsewhere (`submit:PATH`) says nothing about an agent either.

Contaminated runs (evaluation data was found in their workspace) have a gain, but `select_runs` leaves them
out of all statistics unless they are requested.
"""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agent2rl.analysis.findings import ComplianceVerdict, Findings
from agent2rl.analysis.recorded_run import RecordedRun
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.core.agent import SUBMITTING_AGENT
from agent2rl.core.base_record import Record
from agent2rl.core.grading_records import Interval, Split, Submission
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import (
    Clock,
    Ending,
    ExpertHelp,
    IsolationLevel,
    Mode,
    RunResult,
    ScoringProtocol,
)
from agent2rl.core.reproduction import ReproductionAnswer
from agent2rl.record.reader import State

# Spending over time, in seconds since the agent's start.

PLACES = 6


class RunSpending(Record):
    """Resources spent up to a point in time. None means unknown, never 0."""

    seconds: float
    """Agent time."""
    tokens: int
    """Input and output tokens of the driver LLM, as its provider counts them."""
    usd: float | None
    """None if the price of some of it is unknown."""
    gpu_seconds: float | None
    """Busy GPUs times seconds, without the time of gradings. None if it was not sampled, or if the GPU driver
    does not report it."""
    environment_steps: int
    """Steps in the task's environment, served plus claimed."""


class SpendingMeter:
    def __init__(self, record: RecordedRun) -> None:
        timeline = record.timeline
        self._tokens = _CumulativeSum(
            (timeline.seconds_at(_exchange_end(each)), _count_tokens(each)) for each in record.usage
        )
        self._usd = _CumulativeSum(
            (timeline.seconds_at(_exchange_end(each)), each.usd or 0.0) for each in record.usage
        )
        unpriced = (each for each in record.usage if _count_tokens(each) and each.usd is None)
        self._unpriced = _CumulativeSum((timeline.seconds_at(_exchange_end(each)), 1) for each in unpriced)
        reported = all(gpu.busy is not None for _, sample in timeline.samples for gpu in sample.gpus)
        self._gpu = _CumulativeSum(_list_gpu_seconds(timeline)) if timeline.samples and reported else None
        self._steps = _CumulativeSum((at, new.played.steps) for at, new in timeline.played)

    def measure_at(self, seconds: float) -> RunSpending:
        return RunSpending(
            seconds=round(max(0.0, seconds), 3),
            tokens=round(self._tokens.sum_until(seconds)),
            usd=None if self._unpriced.sum_until(seconds) else round(self._usd.sum_until(seconds), PLACES),
            gpu_seconds=round(self._gpu.sum_until(seconds), 3) if self._gpu else None,
            environment_steps=round(self._steps.sum_until(seconds)),
        )


class _CumulativeSum:
    """Sum of values up to a time."""

    def __init__(self, parts: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(parts)
        self._times = [time for time, _ in ordered]
        self._sums = [0.0, *accumulate(value for _, value in ordered)]

    def sum_until(self, time: float) -> float:
        return self._sums[bisect_right(self._times, time)]


def _exchange_end(exchange: LlmExchange) -> float:
    return exchange.at + exchange.seconds


def _count_tokens(exchange: LlmExchange) -> int:
    return exchange.tokens.total if exchange.tokens else 0


def _list_gpu_seconds(timeline: AgentTimeline) -> Iterable[tuple[float, float]]:
    """Yield busy GPU seconds. During grading, the GPU is the grader's."""
    for at, sample in timeline.samples:
        began = at - sample.seconds
        if not any(start < at and end > began for start, end in timeline.graded):
            yield at, sample.seconds * sum(gpu.busy or 0.0 for gpu in sample.gpus)


# The digest.

BROKEN: frozenset[Ending] = frozenset(
    {"failed", "interrupted", "login-failed", "rate-limited", "driver-failed"}
)
"""Endings that the agent did not cause."""


class ScoredPoint(Record):
    """The state of a run when a submission was scored."""

    spent: RunSpending
    submissions: int
    """Number of submissions so far, including this one, whatever their verdicts."""
    best: float
    """Best feedback gain so far, in points above the untouched model, at least 0."""


class RunDigest(Record):
    run_id: str
    task: str
    agent: str
    driver: str | None
    model: str
    mode: Mode
    protocol: ScoringProtocol
    profile: str | None = None
    """The published profile that evaluated it; None if the task's own evaluation did."""
    expert: ExpertHelp = "full"
    clock: Clock = "all"
    network: str = "none"
    seed: int
    budget_seconds: float
    state: State
    ending: Ending | None
    """None if the run has no result."""
    baseline: float | None
    """Score of the untouched model on the ranking split if graded, else on the feedback split."""
    score: float | None
    improvement: float | None
    """Improvement of the best submission on the ranking split, by the run's result. None: no score."""
    chosen_gain: float | None
    """The same on the feedback split, which selected it. None if no valid submission was scored."""
    interval: Interval | None
    real: bool | None
    """Whether the interval is above 0 on a split not used for selection; None without such a split."""
    p_value: float | None
    submissions: int
    scored: int
    route: str | None
    """Route of the best submission."""
    compliance: ComplianceVerdict | None = None
    """Whether it was trained as the mode allows."""
    total: RunSpending
    curve: tuple[ScoredPoint, ...]
    """A point for each scored submission, in the order of verdicts."""
    differences: tuple[float, ...]
    """Best minus untouched for each example of the ranking split, sorted by id. Uses observed scores where a
    score is an expectation. Empty if not known."""
    examples_sha256: str | None
    """Hash of these ids. Runs with the same hash can be paired by example."""
    contaminated: bool | None
    """Whether evaluation data was found in its workspace; None if it was not searched."""
    isolation: IsolationLevel | None = None
    """How far its sandbox isolated the agent; None if that is not recorded."""
    reproduced: ReproductionAnswer | None = None
    """The last answer for the best submission; None if nobody tried to reproduce it."""
    also: dict[str, float] = Field(default_factory=dict)
    """Change of the score on each task of the regression panel that both models were graded on, in points."""
    warning: str = ""
    """What the evaluator says against the scores, such as a test on training data."""

    @cached_property
    def task_setting(self) -> str:
        """The task, its published profile, its expert help, its clock and its network policy.

        All statistics treat different ones of these as different tasks.
        """
        help_level = "" if self.expert == "full" else f"expert {self.expert}"
        clock = "" if self.clock == "all" else f"clock {self.clock}"
        network = "" if self.network == "none" else f"network {self.network}"
        settings = ", ".join(filter(None, (self.profile, help_level, clock, network)))
        return f"{self.task} ({settings})" if settings else self.task

    @cached_property
    def points(self) -> NDArray[np.float64]:
        """The differences as an array, in points. Cached, because many statistics use it."""
        return 100 * np.array(self.differences, dtype=np.float64)

    @cached_property
    def excluded(self) -> str | None:
        """Why this run says nothing about its agent; None if it does."""
        if self.state != "finished":
            return self.state
        if self.ending is None or self.ending in BROKEN:
            return self.ending or "crashed"
        if self.agent.partition(":")[0] == SUBMITTING_AGENT:
            return "trained-elsewhere"
        if self.baseline is None or (self.chosen_gain is not None and self.improvement is None):
            return "not-graded"
        return None

    @cached_property
    def left_base(self) -> bool:
        """Whether the result is the untouched model, since no submission was better on the feedback split."""
        return self.chosen_gain is None or self.chosen_gain <= 0

    @cached_property
    def gain(self) -> float | None:
        """Gain in points, as the module docstring defines it. None if and only if the run is excluded."""
        if self.excluded:
            return None
        return 0.0 if self.left_base else self.improvement

    @property
    def seconds_to_best(self) -> float | None:
        """Agent time until the best feedback score had its verdict; None if none was above the baseline."""
        best = max((point.best for point in self.curve), default=0.0)
        return next((point.spent.seconds for point in self.curve if point.best >= best > 0), None)

    @property
    def succeeded(self) -> bool | None:
        """Whether the gain is real; None if that is not known."""
        if self.excluded:
            return None
        return False if self.left_base else self.real


def digest_run(record: RecordedRun, findings: Findings) -> RunDigest:
    view, result, best = record.view, record.view.result, record.best
    spec, gain = view.spec, findings.gain
    ids, differences = _pair_differences(record, best)
    recorded = result.heldout.ci if result and result.heldout else None
    return RunDigest(
        run_id=view.paths.run_id,
        task=spec.task,
        agent=spec.agent,
        driver=spec.driver,
        model=spec.model,
        mode=spec.mode,
        protocol=spec.protocol,
        profile=spec.profile,
        expert=spec.expert,
        clock=spec.clock,
        network=spec.network,
        seed=spec.seed,
        budget_seconds=spec.budget.wall_seconds,
        state=view.state,
        ending=result.ending if result else None,
        baseline=_find_baseline(record, result),
        score=result.score if result else None,
        improvement=result.improvement if result else None,
        chosen_gain=best.improvement if best else None,
        interval=recorded or (gain.comparison.ci if gain else None),
        real=gain.real if gain else None,
        p_value=gain.p_value if gain else None,
        submissions=len(view.submissions),
        scored=sum(each.verdict == "scored" for each in view.submissions),
        route=_find_best_route(findings, best),
        compliance=findings.compliance.verdict,
        total=_total_spending(record),
        curve=tuple(_trace_best_so_far(record)),
        differences=differences,
        examples_sha256=hashlib.sha256("\n".join(ids).encode()).hexdigest() if ids else None,
        contaminated=view.contaminated,
        isolation=result.isolation.level if result and result.isolation else None,
        reproduced=view.best_reproduction.answer if view.best_reproduction else None,
        also={each.task: each.change.improvement for each in result.also if each.change} if result else {},
        warning=view.warning,
    )


def _find_baseline(record: RecordedRun, result: RunResult | None) -> float | None:
    found = (result.baseline_heldout if result else None) or record.view.baseline
    return found.value if found else None


def _find_best_route(findings: Findings, best: Submission | None) -> str | None:
    mine = (each for each in findings.attempts if best and each.submission == best.id)
    return next((each.route.name for each in mine if each.route), None)


def _pair_differences(record: RecordedRun, best: Submission | None) -> tuple[list[str], tuple[float, ...]]:
    split: Split = "heldout" if record.view.spec.protocol == "default" else "feedback"
    results = record.results.get(split, {})
    after = results.get(best.id) or results.get(best.same_as or 0) if best else None
    was = {each.id: each.score + each.residual for each in record.read_reference_results(split)}
    now = {each.id: each.score + each.residual for each in after or ()}
    ids = sorted(was.keys() & now.keys())
    return ids, tuple(round(now[each] - was[each], PLACES) for each in ids)


def _trace_best_so_far(record: RecordedRun) -> Iterable[ScoredPoint]:
    view, meter = record.view, SpendingMeter(record)
    baseline = view.baseline.value if view.baseline else None
    best = 0.0
    scored = [(each.verdict_at, each) for each in view.submissions if each.score]
    for at, each in sorted(scored, key=lambda pair: (pair[0], pair[1].id)):
        if baseline is None or not each.score:
            continue
        if each.lineage not in ("copied", "foreign"):
            best = max(best, each.improvement or 0.0)
        yield ScoredPoint(
            spent=meter.measure_at(record.timeline.seconds_at(at)),
            submissions=sum(other.accepted_at <= at for other in view.submissions),
            best=round(best, PLACES),
        )


def _total_spending(record: RecordedRun) -> RunSpending:
    """Return the total, from the run's own sums if there are any: they do not stop at the last event."""
    total, result = SpendingMeter(record).measure_at(float("inf")), record.view.result
    known: dict[str, float | None] = {"seconds": round(record.timeline.seconds, 3)}
    if result and result.usage:
        tokens = result.usage.tokens.total
        known |= {"tokens": tokens, "usd": result.usage.usd if tokens else 0.0}
    if result and result.rollouts:
        known["environment_steps"] = result.rollouts.played.steps
    return total.model_copy(update=known)


@dataclass(frozen=True)
class RunSelection:
    """The runs that are ranked together, and the number of those left out."""

    runs: tuple[RunDigest, ...]
    other_protocol: int
    contaminated_left_out: int


def select_runs(
    digests: Sequence[RunDigest], protocol: ScoringProtocol, include_contaminated: bool = False
) -> RunSelection:
    """Select runs for a leaderboard, statistic or figure. All of these start here."""
    under_protocol = [each for each in digests if each.protocol == protocol]
    runs = [each for each in under_protocol if include_contaminated or not each.contaminated]
    return RunSelection(
        runs=tuple(runs),
        other_protocol=len(digests) - len(under_protocol),
        contaminated_left_out=len(under_protocol) - len(runs),
    )


def count_contaminated(digests: Iterable[RunDigest]) -> int:
    return sum(bool(each.contaminated) for each in digests)


def count_compliance(digests: Iterable[RunDigest]) -> dict[str, int]:
    """Count the verdicts on modes that can be broken, by verdict."""
    verdicts = sorted(each.compliance for each in digests if each.compliance not in (None, "free"))
    return dict(Counter(verdicts))


def count_reproduced(digests: Iterable[RunDigest]) -> dict[str, int]:
    """Count the runs that somebody tried to reproduce, by answer."""
    return dict(Counter(sorted(each.reproduced for each in digests if each.reproduced)))


def average_panel(digests: Iterable[RunDigest]) -> dict[str, float]:
    """Return the mean change on each task of the regression panels, over the runs that were graded on it."""
    changes: dict[str, list[float]] = {}
    for each in digests:
        for task, change in each.also.items():
            changes.setdefault(task, []).append(change)
    return {task: round(sum(each) / len(each), PLACES) for task, each in sorted(changes.items())}


def count_excluded(digests: Iterable[RunDigest]) -> dict[str, int]:
    """Count the runs without a gain, by reason."""
    found: dict[str, int] = {}
    for why in sorted(each.excluded for each in digests if each.excluded):
        found[why] = found.get(why, 0) + 1
    return found


def group_by(digests: Sequence[RunDigest], axes: Sequence[str]) -> Mapping[tuple[str, ...], list[RunDigest]]:
    """Group runs by the values of some fields, sorted. A missing driver is an empty text."""
    if not axes:
        return {(): list(digests)} if digests else {}
    read = attrgetter(*axes)
    groups: dict[object, list[RunDigest]] = {}
    for each in digests:
        groups.setdefault(read(each), []).append(each)
    found = {_format_key(key if len(axes) > 1 else (key,)): members for key, members in groups.items()}
    return dict(sorted(found.items()))


def _format_key(values: object) -> tuple[str, ...]:
    assert isinstance(values, tuple)
    return tuple("" if value is None else str(value) for value in values)
