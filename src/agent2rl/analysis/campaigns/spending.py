"""What a run had spent by any moment, in seconds since the agent's start."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from agent2rl.analysis.recorded_run import RecordedRun
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.core.llm import LlmExchange
from agent2rl.core.record import Record

PLACES = 6


class RunSpending(Record):
    """Up to a moment. None is unknown, never 0."""

    seconds: float
    """Of the agent's time."""
    tokens: int
    """Of the driver LLM, read and written, as its provider counts."""
    usd: float | None
    """None: some of it has no known price."""
    gpu_seconds: float | None
    """Busy GPUs times seconds, but for the time in which something was graded. None: nobody looked,
    or the driver does not tell."""
    environment_steps: int
    """In the task's world, witnessed and claimed together."""


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
        told = all(gpu.busy is not None for _, sample in timeline.samples for gpu in sample.gpus)
        self._gpu = _CumulativeSum(_list_gpu_seconds(timeline)) if timeline.samples and told else None
        self._steps = _CumulativeSum(
            (at, new.claimed.steps + new.witnessed.steps) for at, new in timeline.played
        )

    def measure_at(self, seconds: float) -> RunSpending:
        return RunSpending(
            seconds=round(max(0.0, seconds), 3),
            tokens=round(self._tokens.sum_until(seconds)),
            usd=None if self._unpriced.sum_until(seconds) else round(self._usd.sum_until(seconds), PLACES),
            gpu_seconds=round(self._gpu.sum_until(seconds), 3) if self._gpu else None,
            environment_steps=round(self._steps.sum_until(seconds)),
        )


class _CumulativeSum:
    """Of what came in by a moment."""

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
    """A GPU is the grader's while something is graded."""
    for at, sample in timeline.samples:
        began = at - sample.seconds
        if not any(start < at and end > began for start, end in timeline.graded):
            yield at, sample.seconds * sum(gpu.busy or 0.0 for gpu in sample.gpus)
