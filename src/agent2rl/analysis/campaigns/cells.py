"""What the runs of one cell, of a campaign's table or of anything else, come to together."""

from collections.abc import Mapping, Sequence

import numpy as np

from agent2rl.analysis import statistics
from agent2rl.analysis.campaigns.digest import Digest, count_contaminated, count_excluded, group_by
from agent2rl.analysis.campaigns.resampling import (
    LEAST_RUNS,
    NOT_ENOUGH,
    Figure,
    Gains,
    counted,
    figure,
    freedom,
    gains,
    p_value,
    plain_figure,
)
from agent2rl.core.record import Record


class Tally(Record):
    """What can be counted of runs. Gains in points; what cannot be said is None."""

    n: int
    """Runs that have a gain."""
    excluded: dict[str, int]
    """Runs that have none, by why."""
    contaminated: int = 0
    """Of those that have a gain."""
    best: float | None = None
    best_run: str | None = None
    succeeded: int | None = None
    """Runs whose gain is real; None where some run's protocol cannot tell."""
    success: Figure | None = None
    """Their share, in percent; its interval may be `not enough runs to say`, as all may."""


class Cell(Tally):
    mean: Figure | None = None
    median: Figure | None = None
    sd: float | None = None
    """Of the gains, from run to run; None of fewer than two."""
    quartiles: tuple[float, float] | None = None
    p_value: float | None = None
    """Of no gain at all; None where there are not enough runs."""

    @property
    def enough(self) -> bool:
        return self.n >= LEAST_RUNS


def tally(digests: Sequence[Digest]) -> Tally:
    excluded = count_excluded(digests)
    runs = counted(digests)
    if not runs:
        return Tally(n=0, excluded=excluded)
    best = max(runs, key=lambda each: each.gain or 0.0)  # of equals the first
    told = [each.succeeded for each in runs]
    succeeded = None if None in told else sum(map(bool, told))
    return Tally(
        n=len(runs),
        excluded=excluded,
        contaminated=count_contaminated(runs),
        best=best.gain,
        best_run=best.run_id,
        succeeded=succeeded,
        success=None if succeeded is None else rate(succeeded, len(runs)),
    )


def cell(digests: Sequence[Digest]) -> Cell:
    counts = dict(tally(digests))
    runs = counted(digests)
    if not runs:
        return Cell(**counts)
    sample = gains(runs)
    mean, median, p = _middle(sample)
    low, high = (float(each) for each in np.quantile(sample.values, [0.25, 0.75]))
    return Cell(
        **counts,
        mean=mean,
        median=median,
        sd=float(sample.values.std(ddof=1)) if len(runs) > 1 else None,
        quartiles=(low, high),
        p_value=p,
    )


def cells(digests: Sequence[Digest], axes: Sequence[str]) -> Mapping[tuple[str, ...], Cell]:
    """By the values of some fields of the runs."""
    return {key: cell(members) for key, members in group_by(digests, axes).items()}


def rate(successes: int, n: int) -> Figure:
    """In percent, with Wilson's interval."""
    interval = statistics.wilson(successes, n) if n >= LEAST_RUNS else NOT_ENOUGH
    return Figure(value=100 * successes / n, interval=interval)


def _middle(sample: Gains) -> tuple[Figure, Figure, float | None]:
    mean, median = float(sample.values.mean()), float(np.median(sample.values))
    if len(sample) < LEAST_RUNS:
        return Figure(value=mean, interval=NOT_ENOUGH), Figure(value=median, interval=NOT_ENOUGH), None
    means, medians = [], []
    for block in sample.drawn():
        means.append(block.mean(axis=1))
        block.sort(axis=1)  # several times as fast as np.median on many short rows
        medians.append((block[:, (len(sample) - 1) // 2] + block[:, len(sample) // 2]) / 2)
    drawn = sample.widened(np.concatenate(means))
    degrees = freedom([sample])
    return (
        figure(mean, drawn, degrees),
        plain_figure(median, np.concatenate(medians)),
        p_value(mean, drawn, degrees),
    )
