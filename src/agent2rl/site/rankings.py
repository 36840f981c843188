"""Ranks the runs of a site, for its contents: all tasks together by protocol, and each setting by itself.

Runs whose conditions differ are never in one ranking: protocols have rankings of their own, and a task with
another profile, expert help, clock, network policy or budget counts as another task.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agent2rl.analysis.campaigns.leaderboard import (
    ENTRY_AXES,
    Leaderboard,
    LeaderboardRow,
    build_leaderboard,
)
from agent2rl.analysis.campaigns.run_digest import RunDigest, group_by
from agent2rl.core.agent import UNTOUCHED_AGENT
from agent2rl.core.records import PROTOCOLS, ScoringProtocol
from agent2rl.report.formatting import format_duration
from agent2rl.site.collected_runs import CollectedRuns, PublishedRun, RefusedRun
from agent2rl.site.listing import REFERENCE_AGENTS, RunListing
from agent2rl.site.references import ReferenceResult, ReferenceRow, list_reference_rows


@dataclass(frozen=True)
class EntryRow:
    """A row of a ranking: an agent with its driver, base model and mode."""

    row: LeaderboardRow
    score: float | None
    """Mean score on the ranking split; of a run that ends with the untouched model, that model's."""
    runs: tuple[RunListing, ...]
    reference: str
    """The kind of reference; empty for an entry."""


@dataclass(frozen=True)
class SiteRanking:
    """A ranking and the runs that it is made of."""

    name: str
    protocol: ScoringProtocol
    board: Leaderboard
    entries: tuple[EntryRow, ...]
    digests: tuple[RunDigest, ...]
    references: tuple[ReferenceRow, ...] = ()
    not_verified: int = 0
    task: str = ""
    """The task as it was run; empty for a ranking over all tasks."""

    @property
    def key(self) -> str:
        """A name that is unique among rankings and can be part of a URL."""
        return hashlib.sha256(f"{self.protocol}\0{self.name}".encode()).hexdigest()[:12]


def separate_budgets(runs: Sequence[PublishedRun]) -> tuple[PublishedRun, ...]:
    """Return the runs with the budget in the name of a task, if runs of this task had several budgets."""
    budgets: dict[tuple[str, str], set[float]] = {}
    for run in runs:
        key = (run.digest.task_setting, run.digest.protocol)
        budgets.setdefault(key, set()).add(run.digest.budget_seconds)
    return tuple(
        _name_budget(run) if len(budgets[run.digest.task_setting, run.digest.protocol]) > 1 else run
        for run in runs
    )


def _name_budget(run: PublishedRun) -> PublishedRun:
    task = f"{run.digest.task}, {format_duration(run.digest.budget_seconds)}"
    digest = RunDigest.model_validate({**run.digest.model_dump(), "task": task})
    listing = run.listing.model_copy(update={"setting": digest.task_setting})
    return run.model_copy(update={"digest": digest, "listing": listing})


def rank_by_protocol(
    runs: Sequence[PublishedRun], models: Sequence[str], include_contaminated: bool
) -> list[SiteRanking]:
    """Return the rankings over all tasks, one for each protocol that has runs."""
    return [
        _rank_runs(protocol, protocol, members, models, include_contaminated)
        for protocol in PROTOCOLS
        if (members := [run for run in runs if run.digest.protocol == protocol])
    ]


def rank_settings(
    runs: Sequence[PublishedRun],
    models: Sequence[str],
    results: Sequence[ReferenceResult],
    include_contaminated: bool,
) -> list[SiteRanking]:
    """Return a ranking for each setting of a task, with its references."""
    rankings = []
    for protocol in PROTOCOLS:
        members = [run for run in runs if run.digest.protocol == protocol]
        for setting in sorted({run.listing.setting for run in members}):
            mine = [run for run in members if run.listing.setting == setting]
            rankings.append(_rank_runs(setting, protocol, mine, models, include_contaminated, results))
    return rankings


def _rank_runs(
    name: str,
    protocol: ScoringProtocol,
    runs: Sequence[PublishedRun],
    models: Sequence[str],
    include_contaminated: bool,
    results: Sequence[ReferenceResult] | None = None,
) -> SiteRanking:
    verified = [run for run in runs if run.listing.checks.verified]
    ranked = [run for run in verified if not _only_measures(run, models)]
    board = build_leaderboard([run.digest for run in ranked], protocol, include_contaminated)
    chosen = [run for run in ranked if include_contaminated or not run.digest.contaminated]
    by_entry = _group_by_entry(chosen)
    listings = [run.listing for run in verified]
    return SiteRanking(
        name=name,
        protocol=protocol,
        board=board,
        entries=tuple(_build_entry(row, by_entry[_get_key(row)]) for row in board.rows),
        digests=tuple(run.digest for run in ranked),
        references=() if results is None else tuple(list_reference_rows(listings, models, results)),
        not_verified=len(runs) - len(verified),
        task="" if results is None else runs[0].listing.task,
    )


def _only_measures(run: PublishedRun, models: Sequence[str]) -> bool:
    """Whether the run is there to measure a model that is named as a reference."""
    return run.digest.agent == UNTOUCHED_AGENT and run.digest.model in models


def _group_by_entry(runs: Sequence[PublishedRun]) -> Mapping[tuple[str, ...], list[PublishedRun]]:
    by_id = {run.digest.run_id: run for run in runs}
    groups = group_by([run.digest for run in runs], ENTRY_AXES)
    return {key: [by_id[each.run_id] for each in members] for key, members in groups.items()}


def _get_key(row: LeaderboardRow) -> tuple[str, ...]:
    return (row.agent, row.driver, row.model, row.mode)


def _build_entry(row: LeaderboardRow, runs: Sequence[PublishedRun]) -> EntryRow:
    counted = [run.digest for run in runs if run.digest.excluded is None]
    return EntryRow(
        row=row,
        score=_average_score(counted),
        runs=tuple(run.listing for run in runs),
        reference=REFERENCE_AGENTS.get(row.agent, ""),
    )


def _average_score(digests: Sequence[RunDigest]) -> float | None:
    """Return the mean score; None over several tasks, whose scores are not on one scale."""
    scores = [each.baseline if each.left_base else each.score for each in digests]
    known = [score for score in scores if score is not None]
    same_task = len({each.task_setting for each in digests}) == 1
    return fmean(known) if known and len(known) == len(scores) and same_task else None


# All that a site shows: the runs, the rankings made of them, and what was refused.


@dataclass(frozen=True)
class SiteContents:
    title: str
    runs: tuple[PublishedRun, ...]
    refused: tuple[RefusedRun, ...]
    by_protocol: tuple[SiteRanking, ...]
    by_setting: tuple[SiteRanking, ...]
    """A ranking for each task and the conditions that its runs share."""

    @property
    def listings(self) -> tuple[RunListing, ...]:
        return tuple(run.listing for run in self.runs)


def build_contents(
    collected: CollectedRuns,
    title: str = "Leaderboard",
    named_models: Sequence[str] = (),
    results: Sequence[ReferenceResult] = (),
    include_contaminated: bool = False,
) -> SiteContents:
    """Rank the runs. `named_models` are references that runs measured, `results` those from a file."""
    runs = separate_budgets(collected.runs)
    return SiteContents(
        title=title,
        runs=runs,
        refused=collected.refused,
        by_protocol=tuple(rank_by_protocol(runs, named_models, include_contaminated)),
        by_setting=tuple(rank_settings(runs, named_models, results, include_contaminated)),
    )
