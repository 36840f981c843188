"""Compute statistics over a group of runs, such as one cell of a campaign's table."""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from agent2rl.analysis import statistics
from agent2rl.analysis.campaigns.resampling import (
    LEAST_RUNS,
    NOT_ENOUGH,
    GainSample,
    IntervalEstimate,
    collect_gains,
    compute_p_value,
    degrees_of_freedom,
    estimate_with_percentiles,
    estimate_with_student,
    select_counted,
)
from agent2rl.analysis.campaigns.run_digest import (
    RunDigest,
    average_panel,
    count_compliance,
    count_contaminated,
    count_excluded,
    count_reproduced,
    group_by,
)
from agent2rl.core.base_record import Record


class GainTally(Record):
    """Counts over runs. Gains are in points; unknown values are None."""

    n: int
    """Number of runs that have a gain."""
    excluded: dict[str, int]
    """Number of runs without a gain, by reason."""
    contaminated: int = 0
    """Number of contaminated runs among those that have a gain."""
    compliance: dict[str, int] = Field(default_factory=dict)
    """Number of runs with a gain that `kept` or `broken` their mode, or `unknown`. Runs whose mode allows
    anything are not in it."""
    reproduced: dict[str, int] = Field(default_factory=dict)
    """Number of runs with a gain that somebody tried to reproduce, by answer."""
    also: dict[str, float] = Field(default_factory=dict)
    """Mean change on each task of the regression panels, over the runs with a gain that have one."""
    best: float | None = None
    best_run: str | None = None
    succeeded: int | None = None
    """Number of runs with a real gain; None if the protocol of a run cannot tell."""
    success: IntervalEstimate | None = None
    """Their share in percent. Any interval may be `not enough runs to say`."""


class Cell(GainTally):
    mean: IntervalEstimate | None = None
    median: IntervalEstimate | None = None
    sd: float | None = None
    """Standard deviation of the gains; None for fewer than two runs."""
    quartiles: tuple[float, float] | None = None
    p_value: float | None = None
    """For the hypothesis of no gain; None if there are not enough runs."""


def tally_runs(digests: Sequence[RunDigest]) -> GainTally:
    excluded = count_excluded(digests)
    runs = select_counted(digests)
    if not runs:
        return GainTally(n=0, excluded=excluded)
    best = max(runs, key=lambda each: each.gain or 0.0)  # the first of equal ones
    outcomes = [each.succeeded for each in runs]
    succeeded = None if None in outcomes else sum(map(bool, outcomes))
    return GainTally(
        n=len(runs),
        excluded=excluded,
        contaminated=count_contaminated(runs),
        compliance=count_compliance(runs),
        reproduced=count_reproduced(runs),
        also=average_panel(runs),
        best=best.gain,
        best_run=best.run_id,
        succeeded=succeeded,
        success=None if succeeded is None else estimate_rate(succeeded, len(runs)),
    )


def compute_cell(digests: Sequence[RunDigest]) -> Cell:
    counts = dict(tally_runs(digests))
    runs = select_counted(digests)
    if not runs:
        return Cell(**counts)
    sample = collect_gains(runs)
    mean, median, p = _estimate_mean_and_median(sample)
    low, high = (float(each) for each in np.quantile(sample.values, [0.25, 0.75]))
    return Cell(
        **counts,
        mean=mean,
        median=median,
        sd=float(sample.values.std(ddof=1)) if len(runs) > 1 else None,
        quartiles=(low, high),
        p_value=p,
    )


def compute_cells(digests: Sequence[RunDigest], axes: Sequence[str]) -> Mapping[tuple[str, ...], Cell]:
    """Return a cell for each combination of values of these fields."""
    return {key: compute_cell(members) for key, members in group_by(digests, axes).items()}


def estimate_rate(successes: int, n: int) -> IntervalEstimate:
    """Return a rate in percent, with Wilson's interval."""
    interval = statistics.wilson_interval(successes, n) if n >= LEAST_RUNS else NOT_ENOUGH
    return IntervalEstimate(value=100 * successes / n, interval=interval)


def _estimate_mean_and_median(sample: GainSample) -> tuple[IntervalEstimate, IntervalEstimate, float | None]:
    mean, median = float(sample.values.mean()), float(np.median(sample.values))
    if len(sample) < LEAST_RUNS:
        return (
            IntervalEstimate(value=mean, interval=NOT_ENOUGH),
            IntervalEstimate(value=median, interval=NOT_ENOUGH),
            None,
        )
    means, medians = [], []
    for block in sample.draw_blocks():
        means.append(block.mean(axis=1))
        block.sort(axis=1)  # several times as fast as np.median on many short rows
        medians.append((block[:, (len(sample) - 1) // 2] + block[:, len(sample) // 2]) / 2)
    drawn = sample.widen_means(np.concatenate(means))
    degrees = degrees_of_freedom([sample])
    return (
        estimate_with_student(mean, drawn, degrees),
        estimate_with_percentiles(median, np.concatenate(medians)),
        compute_p_value(mean, drawn, degrees),
    )
