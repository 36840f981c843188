"""Select what the figures of the Agent² RL-Bench paper show from the runs of a campaign.

A stack is an agent with a driver and a base model. Modes are compared only within a stack, and drivers only
within an agent and a base model, so that nothing else differs.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from agent2rl.analysis.campaigns.cell_statistics import Cell, compute_cell
from agent2rl.analysis.campaigns.comparisons import Heatmap, assemble_heatmap
from agent2rl.analysis.campaigns.leaderboard import name_entries
from agent2rl.analysis.campaigns.resampling import select_counted
from agent2rl.analysis.campaigns.run_digest import RunDigest, group_by, select_runs
from agent2rl.core.base_record import Record
from agent2rl.core.records import Mode, ScoringProtocol
from agent2rl.core.units import strip_path

PAPER_MODES: tuple[Mode, ...] = ("free", "sft-only", "rl-oriented", "multi")
PAPER_TASKS = ("gsm8k", "humaneval", "alpacaeval", "alfworld", "webshop", "deepsearchqa")
PAPER_SECONDS = 12 * 3600.0
Mark = Literal["best", "worst"]


class MarkedCell(Record):
    row: str
    task: str
    mark: Mark


class MarkedHeatmap(Record):
    """A table of gains. In each group of rows, the best and the worst row of each task are marked."""

    heatmap: Heatmap
    marks: tuple[MarkedCell, ...] = ()
    """Rows that share the best or the worst gain are all marked; if all rows are equal, none is."""
    groups: int = 1

    def get_marks(self) -> dict[tuple[str, str], Mark]:
        return {(each.row, each.task): each.mark for each in self.marks}


class PaperView(Record):
    """The tables of the paper's figures that a campaign report does not have. None: `missing` says why."""

    stacks: MarkedHeatmap | None
    """Stacks in mode `free`, by task."""
    modes: MarkedHeatmap | None
    """Modes by task, for each stack that ran in more than one mode."""
    drivers: MarkedHeatmap | None
    """Drivers by task in mode `free`, for each agent that ran with more than one driver."""
    missing: dict[str, str]
    """What a table lacks, by its name."""
    deviations: tuple[str, ...]
    """Where the runs differ from the paper's settings."""


def build_paper_view(
    digests: Sequence[RunDigest], protocol: ScoringProtocol, include_contaminated: bool = False
) -> PaperView:
    runs = select_counted(select_runs(digests, protocol, include_contaminated).runs)
    free = [each for each in runs if each.mode == "free"]
    by_stack = _group_varying(runs, ("agent", "driver", "model"), "mode")
    by_scaffold = _group_varying(free, ("agent", "model"), "driver")
    return PaperView(
        stacks=_build_stacks(free) if free else None,
        modes=_build_marked(by_stack, "mode") if by_stack else None,
        drivers=_build_marked(by_scaffold, "driver") if by_scaffold else None,
        missing=_describe_missing(runs, free, by_stack, by_scaffold),
        deviations=tuple(_list_deviations(runs)),
    )


def _group_varying(
    runs: Sequence[RunDigest], axes: Sequence[str], varied: str
) -> Mapping[tuple[str, ...], Sequence[RunDigest]]:
    """Group runs by these axes; keep the groups with more than one value on the varied one."""
    return {key: found for key, found in group_by(runs, axes).items() if len(group_by(found, (varied,))) > 1}


def _build_stacks(runs: Sequence[RunDigest]) -> MarkedHeatmap:
    names = name_entries(runs)
    groups = group_by(runs, ("agent", "driver", "model", "mode", "task_setting"))
    cells: dict[tuple[str, ...], Cell] = {
        (names[key[:4]], key[4]): compute_cell(members) for key, members in groups.items()
    }
    return MarkedHeatmap(heatmap=assemble_heatmap(cells, "stack"))


def _build_marked(groups: Mapping[tuple[str, ...], Sequence[RunDigest]], varied: str) -> MarkedHeatmap:
    names = _name_groups(list(groups))
    cells: dict[tuple[str, ...], Cell] = {}
    marks: list[MarkedCell] = []
    for key, runs in groups.items():
        mine: dict[tuple[str, ...], Cell] = {
            (_join(names[key], value), task): compute_cell(members)
            for (value, task), members in group_by(runs, (varied, "task_setting")).items()
        }
        marks += _mark_extremes(mine)
        cells |= mine
    return MarkedHeatmap(heatmap=assemble_heatmap(cells, varied), marks=tuple(marks), groups=len(groups))


def _name_groups(keys: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Name each group by the parts that differ between groups; a single group needs no name."""
    differs = [len({key[at] for key in keys}) > 1 for at in range(len(keys[0]))]
    names = {}
    for key in keys:
        parts = [strip_path(part) or "no driver" for part, shown in zip(key, differs, strict=True) if shown]
        names[key] = " · ".join(parts)
    return names


def _join(group: str, value: str) -> str:
    name = strip_path(value) or "no driver"
    return f"{group} · {name}" if group else name


def _mark_extremes(cells: Mapping[tuple[str, ...], Cell]) -> list[MarkedCell]:
    marks = []
    for task in sorted({task for _, task in cells}):
        means = {row: cell.mean.value for (row, other), cell in cells.items() if other == task and cell.mean}
        best, worst = max(means.values(), default=0.0), min(means.values(), default=0.0)
        if best > worst:
            marks += [MarkedCell(row=row, task=task, mark="best") for row in means if means[row] == best]
            marks += [MarkedCell(row=row, task=task, mark="worst") for row in means if means[row] == worst]
    return marks


def _describe_missing(
    runs: Sequence[RunDigest], free: Sequence[RunDigest], by_stack: object, by_scaffold: object
) -> dict[str, str]:
    modes = ", ".join(sorted({each.mode for each in runs})) or "none"
    drivers = ", ".join(sorted({each.driver or "no driver" for each in free})) or "none"
    missing = {}
    if not free:
        missing["stacks"] = f"It needs runs in the mode free. Modes of these runs: {modes}."
    if not by_stack:
        missing["modes"] = (
            "It needs an agent that ran in more than one mode with the same driver and base model. "
            f"Modes of these runs: {modes}."
        )
    if not by_scaffold:
        missing["drivers"] = (
            "It needs an agent that ran in the mode free with more than one driver and the same base model. "
            f"Drivers of these runs: {drivers}."
        )
    if not any(each.curve for each in runs):
        missing["trajectories"] = "It needs a submission with a score. No run has one."
    if not any(each.route and not each.left_base for each in runs):
        missing["routes"] = "It needs a run whose best model was trained in a known way. No run has one."
    return missing


def _list_deviations(runs: Sequence[RunDigest]) -> list[str]:
    """Say how these runs differ from the paper's."""
    found = []
    if any(each.protocol != "paper" for each in runs):
        found.append("The gains are on held-out data. The paper's are on the test set that chose the models.")
    budgets = sorted({each.budget_seconds for each in runs} - {PAPER_SECONDS})
    if budgets:
        hours = ", ".join(f"{seconds / 3600:.3g} h" for seconds in budgets)
        found.append(f"Time budgets differ: {hours}. The paper's runs have 12 h.")
    tasks = {each.task for each in runs}
    if other := sorted(tasks - set(PAPER_TASKS)):
        found.append(f"These tasks are not the paper's: {', '.join(other)}.")
    if absent := [task for task in PAPER_TASKS if task not in tasks]:
        found.append(f"These tasks of the paper have no runs: {', '.join(absent)}.")
    modes = {each.mode for each in runs}
    if lacking := [mode for mode in PAPER_MODES if mode not in modes]:
        found.append(f"These modes of the paper have no runs: {', '.join(lacking)}.")
    return found
