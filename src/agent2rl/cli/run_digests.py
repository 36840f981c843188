"""Gather the digests of many runs and the traits of their tasks, for leaderboards and campaign reports."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from agent2rl import registry
from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.core.errors import UserError
from agent2rl.record.paths import RunPaths
from agent2rl.report import digests

MINIATURE = "-mini"


def require_runs_in(folder: Path) -> list[RunPaths]:
    """Return all runs in a runs directory; raise UserError if there are none."""
    runs = digests.runs_below(folder)
    if not runs:
        raise UserError(
            f"There are no runs below {folder}.", "Choose another runs directory with --runs-dir."
        )
    return runs


def gather_digests(runs: Sequence[RunPaths]) -> digests.GatheredDigests:
    """Gather digests with a progress bar on stderr, because a run without a cached digest takes a moment."""
    columns = (TextColumn("reading runs"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(runs))
        return digests.gather_digests(runs, lambda done: progress.update(bar, completed=done))


def select_task_traits(run_digests: Sequence[RunDigest]) -> list[TaskTraits]:
    """Return the traits of all miniature tasks if any was run, and of all full tasks if any was run."""
    sizes = {digest.task.endswith(MINIATURE) for digest in run_digests}
    return [traits for traits in list_task_traits() if traits.task.endswith(MINIATURE) in sizes]


@cache
def list_task_traits() -> list[TaskTraits]:
    """Return the traits of every registered task that needs no argument."""
    traits = []
    for entry in registry.list_entries("tasks"):
        with suppress(UserError):  # a task that needs an argument, such as a folder
            task = registry.find_task(entry.name)
            traits.append(
                TaskTraits(
                    task=task.id,
                    level=task.level,
                    world=task.world is not None,
                    judged=task.judged,
                    judge_offered="judge" in task.proxy_services,
                )
            )
    return traits
