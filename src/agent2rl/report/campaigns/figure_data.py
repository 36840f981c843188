"""What each figure of a campaign shows, as rows: unknown is empty, never 0."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis, GainTrajectory
from agent2rl.analysis.campaigns.cell_statistics import Cell
from agent2rl.analysis.campaigns.comparison_families import ComparisonFamily
from agent2rl.analysis.campaigns.heatmap import Heatmap
from agent2rl.analysis.campaigns.leaderboard import Leaderboard
from agent2rl.analysis.campaigns.resampling import IntervalEstimate
from agent2rl.core.records import Interval
from agent2rl.report.export import escape_csv_cell

Value = str | int | float | None
Table = list[Mapping[str, Value]]


def render_csv(rows: Sequence[Mapping[str, Value]]) -> str:
    """As CSV. A text that a spreadsheet would take for a formula gets a mark before it."""
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
            "succeeded": row.all.succeeded,
            **describe_figure("success", row.all.success),
            "best_gain": round_value(row.all.best),
            "best_run": row.all.best_run,
            "seconds_per_run": round_value(row.cost.seconds) if row.cost else None,
            "tokens_per_run": round_value(row.cost.tokens) if row.cost else None,
            "usd_per_run": round_value(row.cost.usd) if row.cost else None,
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
            **describe_cell(found),
        }
        for row in board.rows
        for task, found in row.by_task.items()
    ]


def build_heatmap_rows(found: Heatmap) -> Table:
    return [
        {
            found.row_axis: each.row,
            found.column_axis: each.column,
            **describe_cell(each.cell),
            "p_holm": each.p_holm,
            "star": "yes" if each.star else "no",
        }
        for each in found.cells
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
            "runs": found.n,
            "k": k,
            **describe_figure("expected_best_gain", value),
        }
        for line in campaign.lines
        for task, found in line.best_of.items()
        for k, value in found.expected.items()
    ]


def build_scaling_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {
            "line": line.name,
            "spent": axis,
            "amount": found.grid[at],
            "runs": found.n,
            "runs_that_spent_it": found.reached[at],
            "mean": found.mean[at],
            **{f"quantile_{share}": band[at] for share, band in found.quantiles.items()},
        }
        for line in campaign.lines
        for axis, found in line.scaling.items()
        for at in range(len(found.grid))
    ]


def build_trajectory_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {**_describe_run(each.task, run), "seconds": seconds, "best_gain": best}
        for each in campaign.trajectories
        for run in each.courses
        for seconds, best in ((0.0, 0.0), *run.points)
    ]


def build_single_gain_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {**_describe_run(each.task, run), "gain": round_value(run.gain)}
        for each in campaign.trajectories
        for run in each.courses
    ]


def _describe_run(task: str, run: GainTrajectory) -> Mapping[str, Value]:
    contaminated = {True: "yes", False: "no", None: None}[run.contaminated]
    return {"task": task, "run": run.run_id, "line": run.line, "contaminated": contaminated}


def build_route_rows(campaign: CampaignAnalysis) -> Table:
    return [
        {
            "by": axis,
            "group": name,
            "route": route,
            "runs": count,
            **describe_figure("share", found.shares[route]),
        }
        for axis, groups in (("task", campaign.routes_by_task), ("agent", campaign.routes_by_agent))
        for name, found in groups.items()
        for route, count in found.counts.items()
    ]


def describe_cell(found: Cell) -> Mapping[str, Value]:
    low, high = found.quartiles or (None, None)
    return {
        "runs": found.n,
        "excluded": sum(found.excluded.values()),
        "contaminated": found.contaminated,
        **describe_figure("mean_gain", found.mean),
        **describe_figure("median_gain", found.median),
        "sd": round_value(found.sd),
        "quartile_1": round_value(low),
        "quartile_3": round_value(high),
        "best_gain": round_value(found.best),
        "best_run": found.best_run,
        "succeeded": found.succeeded,
        **describe_figure("success", found.success),
        "p_value": found.p_value,
    }


def _round_mean(found: Cell | None) -> float | None:
    return round_value(found.mean.value) if found and found.mean else None


def describe_figure(name: str, found: IntervalEstimate | None) -> Mapping[str, Value]:
    interval = found.interval if found and isinstance(found.interval, Interval) else None
    return {
        name: round_value(found.value) if found else None,
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
