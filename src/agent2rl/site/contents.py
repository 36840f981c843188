"""All that a site shows: the runs, the rankings made of them, and what was refused."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent2rl.site.collected_runs import CollectedRuns, RefusedRun
from agent2rl.site.listing import RunListing
from agent2rl.site.published_run import PublishedRun
from agent2rl.site.rankings import SiteRanking, rank_by_protocol, rank_settings, separate_budgets
from agent2rl.site.references import ReferenceResult


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
