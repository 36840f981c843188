"""Tables about many runs as rows for CSV: the data of each figure, and the leaderboard.

An unknown value is empty, never 0.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis, GainTrajectory
from agent2rl.analysis.campaigns.cell_statistics import Cell, GainTally
from agent2rl.analysis.campaigns.comparisons import ComparisonFamily, Heatmap
from agent2rl.analysis.campaigns.leaderboard import Leaderboard
from agent2rl.analysis.campaigns.resampling import IntervalEstimate
from agent2rl.analysis.campaigns.training_sample import TaskTrainings
from agent2rl.core.grading_records import Interval
from agent2rl.core.reproduction import REPRODUCTION_ANSWERS
from agent2rl.report.export import escape_csv_cell

Value = str | int | float | None
Table = list[Mapping[str, Value]]


def render_csv(rows: Sequence[Mapping[str, Value]]) -> str:
    """Render rows as CSV. Texts that a spreadsheet would take for a formula are escaped."""
    out = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({name: escape_csv_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def build_leaderboard_rows(board: Leaderboard) -> Table:
    return [
        {
            "entry": row.name,
            "agent": row.agent,
            "driver": row.driver,
            "model": row.model,
            "mode": row.mode,
            **_describe_rank(row.place.rank, row.place.rank_interval),
            **describe_figure("mean_gain", row.place.mean),
            "runs": row.all.n,
            "excluded": sum(row.all.excluded.values()),
            "contaminated": row.all.contaminated,
            **_describe_compliance(row.all),
            **{
                f"runs_{name.replace(' ', '_')}": row.all.reproduced.get(name, 0)
                for name in REPRODUCTION_ANSWERS
            },
            "succeeded": row.all.succeeded,
            **describe_figure("success", row.all.success),
            "best_gain": round_value(row.all.best),
            "best_run": row.all.best_run,
            "seconds_per_run": round_value(row.cost.seconds) if row.cost else None,
            "tokens_per_run": round_value(row.cost.tokens) if row.cost else None,
            "usd_per_run": round_value(row.cost.usd) if row.cost else None,
            "seconds_to_best": round_value(row.cost.seconds_to_best) if row.cost else None,
            "points_per_usd": round_value(row.cost.points_per_usd) if row.cost else None,
            **{f"also:{task}": round_value(change) for task, change in row.all.also.items()},
            **{f"gain:{task}": _round_mean(row.by_task.get(task)) for task in board.tasks},
        }
        for row in board.rows
    ]


def build_ranking_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {
            "entry": row.name,
            "runs": row.place.n,
            "contaminated": row.all.contaminated,
            **describe_figure("mean_gain", row.place.mean),
            **_describe_rank(row.place.rank, row.place.rank_interval),
            **{f"chance_of_rank_{rank}": chance for rank, chance in enumerate(row.place.chances, 1)},
        }
        for row in campaign.leaderboard.rows
    ]


def build_cell_rows(board: Leaderboard) -> Table:
    return [
        {
            "task": task,
            "agent": row.agent,
            "driver": row.driver,
            "model": row.model,
            "mode": row.mode,
            **describe_cell(cell),
        }
        for row in board.rows
        for task, cell in row.by_task.items()
    ]


def build_heatmap_rows(heatmap: Heatmap, marks: Mapping[tuple[str, str], str] | None = None) -> Table:
    return [
        {
            heatmap.row_axis: each.row,
            heatmap.column_axis: each.column,
            **describe_cell(each.cell),
            "p_holm": each.p_holm,
            "star": "yes" if each.star else "no",
            **({"mark": marks.get((each.row, each.column), "")} if marks else {}),
        }
        for each in heatmap.cells
    ]


def build_coverage_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {
            "dimension": each.dimension,
            "kind": each.value,
            "tasks_run": ", ".join(each.run),
            "tasks_not_run": ", ".join(task for task in each.tasks if task not in each.run),
            "runs": each.runs,
            "excluded": each.excluded,
        }
        for each in campaign.coverage
    ]


def build_run_count_rows(board: Leaderboard) -> Table:
    """Count the runs that have a gain, by entry and task."""
    return [
        {
            "entry": row.name,
            **{task: row.by_task[task].n if task in row.by_task else 0 for task in board.tasks},
            "excluded": sum(row.all.excluded.values()),
        }
        for row in board.rows
    ]


def build_comparison_rows(family: ComparisonFamily) -> Table:
    return [
        {
            "axis": family.axis,
            "first": each.first,
            "second": each.second,
            "paired": "yes" if each.found.paired else "no",
            "tasks": len(each.found.tasks),
            "runs_first": each.found.n[0],
            "runs_second": each.found.n[1],
            **describe_figure("difference", each.found.difference),
            "cliffs_delta": round_value(each.found.effect),
            "p_value": each.found.p_value,
            "p_holm": each.p_holm,
        }
        for each in family.pairs
    ]


def build_best_of_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {
            "line": line.name,
            "task": task,
            "runs": best_of.n,
            "k": k,
            **describe_figure("expected_best_gain", value),
        }
        for line in campaign.lines
        for task, best_of in line.best_of.items()
        for k, value in best_of.expected.items()
    ]


def build_scaling_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {
            "line": line.name,
            "spent": axis,
            "amount": curve.grid[at],
            "runs": curve.n,
            "runs_that_spent_it": curve.reached[at],
            "mean": curve.mean[at],
            **{f"quantile_{share}": band[at] for share, band in curve.quantiles.items()},
        }
        for line in campaign.lines
        for axis, curve in line.scaling.items()
        for at in range(len(curve.grid))
    ]


def build_trajectory_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {**_describe_run(each.task, run), "seconds": seconds, "best_gain": best}
        for each in campaign.trajectories
        for run in each.trajectories
        for seconds, best in ((0.0, 0.0), *run.points)
    ]


def build_single_gain_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {**_describe_run(each.task, run), "gain": round_value(run.gain)}
        for each in campaign.trajectories
        for run in each.trajectories
    ]


def _describe_run(task: str, run: GainTrajectory) -> Mapping[str, Value]:
    contaminated = {True: "yes", False: "no", None: None}[run.contaminated]
    return {"task": task, "run": run.run_id, "line": run.line, "contaminated": contaminated}


def build_training_rows(task: TaskTrainings) -> Table:
    """Return the points of the curves; a submission is a row with its number, at the step it was made."""
    rows: Table = []
    for run in task.runs:
        for training in run.trainings:
            named = {"task": task.task, "run": run.run_id, "line": run.line, "training": training.name}
            rows += [
                {**named, "metric": series.metric, "name_in_log": series.name, "step": step, "value": value}
                for series in training.series
                for step, value in series.points
            ]
            rows += [
                {**named, "metric": "submission", "step": mark.step, "value": mark.submission}
                for mark in training.submissions
            ]
    return rows


def build_route_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {
            "by": axis,
            "group": name,
            "route": route,
            "runs": count,
            **describe_figure("share", routes.shares[route]),
        }
        for axis, groups in (("task", campaign.routes_by_task), ("agent", campaign.routes_by_agent))
        for name, routes in groups.items()
        for route, count in routes.counts.items()
    ]


def describe_cell(cell: Cell) -> Mapping[str, Value]:
    low, high = cell.quartiles or (None, None)
    return {
        "runs": cell.n,
        "excluded": sum(cell.excluded.values()),
        "contaminated": cell.contaminated,
        **_describe_compliance(cell),
        **describe_figure("mean_gain", cell.mean),
        **describe_figure("median_gain", cell.median),
        "sd": round_value(cell.sd),
        "quartile_1": round_value(low),
        "quartile_3": round_value(high),
        "best_gain": round_value(cell.best),
        "best_run": cell.best_run,
        "succeeded": cell.succeeded,
        **describe_figure("success", cell.success),
        "p_value": cell.p_value,
    }


def _describe_compliance(tally: GainTally) -> Mapping[str, Value]:
    return {f"mode_{verdict}": tally.compliance.get(verdict, 0) for verdict in ("kept", "broken", "unknown")}


def _round_mean(cell: Cell | None) -> float | None:
    return round_value(cell.mean.value) if cell and cell.mean else None


def describe_figure(name: str, estimate: IntervalEstimate | None) -> Mapping[str, Value]:
    interval = estimate.interval if estimate and isinstance(estimate.interval, Interval) else None
    return {
        name: round_value(estimate.value) if estimate else None,
        f"{name}_low": round_value(interval.low) if interval else None,
        f"{name}_high": round_value(interval.high) if interval else None,
    }


def round_value(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _describe_rank(rank: float | str, interval: Iterable[float] | str) -> Mapping[str, Value]:
    low, high = (None, None) if isinstance(interval, str) else tuple(interval)
    return {
        "expected_rank": None if isinstance(rank, str) else round_value(rank),
        "rank_low": low,
        "rank_high": high,
    }
