"""How a run went: the published process metrics, and how early and how busily the gain came about."""

from collections.abc import Sequence
from itertools import pairwise

from agent2rl.analysis.findings import ProcessMetrics
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.core.records import EvalScore, Submission


def measure_run(
    submissions: Sequence[Submission],
    baseline: EvalScore | None,
    timeline: AgentTimeline,
    budget_seconds: float,
) -> ProcessMetrics:
    """Times are of verdicts, as in the published code: when the agent could know. Without its start, none."""
    timed = timeline.started is not None
    done = [each for each in submissions if each.verdict]
    scored = [(timeline.seconds_at(each.verdict_at), each.score.value, each) for each in done if each.score]
    trained = [(at, value) for at, value, each in scored if each.lineage not in ("copied", "foreign")]
    best = max(trained, key=lambda pair: (pair[1], -pair[0]), default=None)
    above = [at for at, value in trained if baseline and value > baseline.value]
    values = [value for _, value, _ in scored]
    return ProcessMetrics(
        valid_submission_rate=len(scored) / len(done) if done else None,
        first_valid_idx=scored[0][2].id if scored else None,
        first_valid_delay=_round_seconds(scored[0][0]) if scored and timed else None,
        score_trajectory=tuple(each.score.value if each.score else None for each in done),
        time_to_first_improvement=_round_seconds(min(above)) if above and timed else None,
        time_to_best=_round_seconds(best[0]) if best and timed else None,
        monotonic_ratio=_share_true([now > before for before, now in pairwise(values)]),
        copy_model_count=sum(each.lineage == "copied" for each in done),
        time_used_ratio=round(timeline.seconds / budget_seconds, 6) if timeline.started else None,
        last_submit_gap=_round_seconds(timeline.seconds - timeline.seconds_at(submissions[-1].accepted_at))
        if submissions and timed
        else None,
        best_area=compute_best_area(trained, baseline.value, budget_seconds) if baseline and timed else None,
        cpu_busy=_weighted_mean([(sample.cores, sample.seconds) for _, sample in timeline.samples]),
        gpu_busy=_weighted_mean(
            [
                (sum(known) / len(known), sample.seconds)
                for _, sample in timeline.samples
                if (known := [gpu.busy for gpu in sample.gpus if gpu.busy is not None])
            ]
        ),
    )


def compute_best_area(scored: Sequence[tuple[float, float]], baseline: float, seconds: float) -> float:
    """Mean gain over the budget of the best so far, which is the untouched model at first."""
    area, best, at = 0.0, baseline, 0.0
    for time, value in sorted(scored):
        time = min(max(time, at), seconds)
        area += (best - baseline) * (time - at)
        best, at = max(best, value), time
    return round((area + (best - baseline) * (seconds - at)) / seconds, 6)


def _round_seconds(value: float) -> float:
    return round(max(0.0, value), 3)


def _share_true(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def _weighted_mean(weighed: Sequence[tuple[float, float]]) -> float | None:
    """By the time that each stands for."""
    whole = sum(seconds for _, seconds in weighed)
    return round(sum(value * seconds for value, seconds in weighed) / whole, 6) if whole else None
