"""The digests of many runs, and what their tasks are: where leaderboards and reports of campaigns start."""

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
    """All of a runs directory, which must have some."""
    found = digests.runs_below(folder)
    if not found:
        raise UserError(f"There are no runs below {folder}.", "Name the runs directory, or use --runs-dir.")
    return found


def gather_digests(runs: Sequence[RunPaths]) -> digests.GatheredDigests:
    """With a bar on stderr: a run that has no digest yet takes a moment."""
    columns = (TextColumn("reading runs"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(runs))
        return digests.gather_digests(runs, lambda done: progress.update(bar, completed=done))


def select_task_traits(found: Sequence[RunDigest]) -> list[TaskTraits]:
    """Of all tasks that there are: of the miniatures where only miniatures were run, and the reverse."""
    sizes = {each.task.endswith(MINIATURE) for each in found}
    return [each for each in list_task_traits() if each.task.endswith(MINIATURE) in sizes]


@cache
def list_task_traits() -> list[TaskTraits]:
    found = []
    for entry in registry.list_entries("tasks"):
        with suppress(UserError):  # one that is made of an argument, such as a folder
            task = registry.find_task(entry.name)
            found.append(
                TaskTraits(
                    task=task.id,
                    level=task.level,
                    world=task.world is not None,
                    judged=task.judged,
                    judge_offered="judge" in task.desk,
                )
            )
    return found
