"""agent2rl campaign"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import click

from agent2rl.analysis.campaigns.campaign_analysis import analyse_campaign
from agent2rl.campaign import executors
from agent2rl.campaign.claims_and_sessions import (
    CampaignSession,
    SessionRecord,
    list_open_sessions,
    read_machine_id,
)
from agent2rl.campaign.experiment_status import ENDINGS, select_failed, select_runnable
from agent2rl.cli import opened_campaign
from agent2rl.cli.campaign_table import CampaignDisplay, print_plan, print_statuses
from agent2rl.cli.leaderboard import include_contaminated, protocol
from agent2rl.cli.opened_campaign import OpenedCampaign, open_campaign, run_campaign
from agent2rl.cli.options import as_json, runs_dir
from agent2rl.cli.run_digests import gather_digests, select_task_traits
from agent2rl.core.errors import UserError
from agent2rl.core.records import Ending, ScoringProtocol

POLL_SECONDS = 0.5


@click.group("campaign")
def campaign_command() -> None:
    """Run a matrix of experiments from a TOML file.

    \b
    agent2rl campaign plan campaigns/smoke.toml       what there is to run, and what it takes
    agent2rl campaign run campaigns/smoke.toml        run what is not done yet
    agent2rl campaign status campaigns/smoke.toml     how it stands
    agent2rl campaign stop campaigns/smoke.toml       end what is running, in order
    agent2rl campaign retry --failed campaigns/smoke.toml
    agent2rl campaign report campaigns/smoke.toml     what can be concluded from it
    """


campaign_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


def add_executor_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say where a campaign is run."""
    for option in reversed(
        (
            click.option(
                "--executor",
                type=click.Choice(["local", "ray", "slurm"]),
                default="local",
                show_default=True,
                help="Where runs are done: processes of this machine, a Ray cluster, a Slurm cluster.",
            ),
            click.option(
                "--parallel",
                type=click.IntRange(1),
                help="Runs at once.  [default: as many as fit here; on a cluster, as it lets]",
            ),
            click.option(
                "--address", metavar="HOST:PORT", help="Ray: of a cluster that runs.  [default: this machine]"
            ),
            click.option(
                "--fetch", is_flag=True, help="Ray: workers do not share the runs directory; bring runs here."
            ),
            click.option(
                "--slurm",
                metavar="KEY=VALUE",
                multiple=True,
                help="Slurm: a parameter of sbatch, e.g. partition=gpu. May be given several times.",
            ),
        )
    ):
        function = option(function)
    return function


again = click.option("--again", is_flag=True, help="Run those that are done once more.")
limit = click.option("--limit", type=click.IntRange(1), help="Run so many at most.")


@campaign_command.command("plan")
@campaign_file
@add_executor_options
@again
@limit
@runs_dir
@as_json
def plan_command(
    file: Path, again: bool, limit: int | None, runs_dir: Path | None, as_json: bool, **asked: Any
) -> None:
    """Print a campaign's runs: how each stands, and what the rest will take and cost."""
    campaign, wanted = open_campaign(file, runs_dir), _parse_executor_options(asked)
    standings = campaign.find_statuses()
    found = campaign.make_plan(standings, select_runnable(standings, again)[:limit], wanted)
    click.echo(found.model_dump_json()) if as_json else print_plan(found)


@campaign_command.command("run")
@campaign_file
@add_executor_options
@again
@limit
@click.option("--detach", is_flag=True, help="Slurm: submit the jobs and leave.")
@runs_dir
@as_json
def run_command(
    file: Path,
    again: bool,
    limit: int | None,
    detach: bool,
    runs_dir: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Run what is not done yet. Ctrl-C ends each run in order; a second one ends them at once.

    Whoever else runs the same campaign on the same runs directory, here or on another machine, shares the
    work: no experiment is run by two.

    Exit code: 0 where every experiment is done, 1 where one is not, 130 where it was stopped.
    """
    wanted = _parse_executor_options(asked)
    if detach and wanted.executor != "slurm":
        raise UserError("--detach is for --executor slurm.", "The others' runs end with this command.")
    run_campaign(
        open_campaign(file, runs_dir),
        wanted,
        lambda found: select_runnable(found, again)[:limit],
        as_json,
        detach,
    )


@campaign_command.command("retry")
@campaign_file
@click.option("--failed", "all_failed", is_flag=True, help="Those that failed for no fault of the agent.")
@click.option(
    "--ending",
    type=click.Choice(ENDINGS),
    multiple=True,
    help="Those whose last run ended so, e.g. out-of-memory.",
)
@add_executor_options
@limit
@runs_dir
@as_json
def retry_command(
    file: Path,
    all_failed: bool,
    ending: tuple[str, ...],
    limit: int | None,
    runs_dir: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Run once more what went wrong.

    What the agent did wrong is a result (agent-failed, out-of-memory, …) and is retried only where --ending
    names it: the better of two runs is not a fair one.
    """
    if not all_failed and not ending:
        raise UserError("Say what to retry.", "--failed, or --ending NAME.")
    endings = cast(tuple[Ending, ...], ending)
    run_campaign(
        open_campaign(file, runs_dir),
        _parse_executor_options(asked),
        lambda found: select_failed(found, all_failed, endings)[:limit],
        as_json,
    )


@campaign_command.command("status")
@campaign_file
@click.option("--once", is_flag=True, help="Print the table once.  [default where there is no terminal]")
@runs_dir
@as_json
def status_command(file: Path, once: bool, runs_dir: Path | None, as_json: bool) -> None:
    """Show how a campaign stands, until all of it is done."""
    campaign = open_campaign(file, runs_dir)
    standings = campaign.find_statuses()
    if as_json:
        click.echo(opened_campaign.format_statuses_json(campaign, standings))
    elif once or not sys.stdout.isatty():
        print_statuses(standings)
    else:
        with CampaignDisplay(quiet=False) as watch:
            while any(one.state != "done" for one in standings):
                watch.show_statuses(standings)
                time.sleep(1)
                standings = campaign.find_statuses()
            watch.show_statuses(standings)


@campaign_command.command("stop")
@campaign_file
@click.option("--now", is_flag=True, help="Do not wait for runs to end in order.")
@runs_dir
def stop_command(file: Path, now: bool, runs_dir: Path | None) -> None:
    """Ask everybody who runs this campaign to stop, and wait until all its runs have ended."""
    campaign = open_campaign(file, runs_dir)
    sessions = list_open_sessions(campaign.runs, campaign.campaign.name)
    for session, _ in sessions:
        session.request_stop("now" if now else "stop")
    mine = {session.token for session, _ in sessions}
    told = -1
    while left := _list_holders(campaign, mine) or _list_starting_sessions(sessions):
        if len(left) != told:
            click.echo(f"{len(left)} still running: {', '.join(left)}", err=True)
        told = len(left)
        time.sleep(POLL_SECONDS)
    click.echo("nothing was running" if told < 0 else "all have ended")


@campaign_command.command("report")
@click.argument("source", metavar="FILE|RUNS", type=click.Path(path_type=Path, exists=True))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write it to this folder.  [default: campaign-NAME in the current one]",
)
@protocol
@include_contaminated
@runs_dir
@as_json
def report_command(
    source: Path,
    output: Path | None,
    protocol: ScoringProtocol,
    include_contaminated: bool,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Say what many runs come to: those of a campaign's FILE, or all in the directory RUNS.

    \b
    campaign.html   one page with all figures
    campaign.md     the same to read elsewhere; campaign.json for programs
    figures/        each figure as SVG and PNG, and its data as CSV
    leaderboard.csv, cells.csv

    \b
    agent2rl campaign report campaigns/smoke.toml -o docs/results/smoke
    agent2rl campaign report runs/
    """
    name, about, runs = opened_campaign.find_campaign_runs(source, runs_dir)
    found = gather_digests(runs)
    made = analyse_campaign(
        found.digests,
        select_task_traits(found.digests),
        name,
        about,
        protocol,
        found.unreadable,
        include_contaminated,
    )
    from agent2rl.report import campaign_page

    written = campaign_page.write(made, output or Path(f"campaign-{name or 'all'}"))
    if as_json:
        click.echo(made.model_dump_json())
        return
    click.echo(campaign_page.sentence(made))
    for note in campaign_page.notes(made):
        click.echo(f"note: {note}", err=True)
    click.echo(f"report: {written}")


def _list_holders(campaign: OpenedCampaign, sessions: set[str]) -> list[str]:
    """The runs that work for these sessions, by host."""
    now = campaign.claims.read_storage_clock()
    holders = (campaign.claims.find_holder(each.id, now) for each in campaign.experiments)
    return [f"{holder.host}:{holder.pid}" for holder in holders if holder and holder.session in sessions]


def _list_starting_sessions(sessions: Sequence[tuple[CampaignSession, SessionRecord]]) -> list[str]:
    """Sessions of this machine that have not ended: one may be about to claim something."""
    here = read_machine_id()
    left = (who for session, who in sessions if not session.paths.ended.exists())
    return [f"{who.host}:{who.pid}" for who in left if who.machine == here and not who.dead]


def _parse_executor_options(asked: dict[str, Any]) -> executors.ExecutorOptions:
    pairs = [each.partition("=") for each in asked["slurm"]]
    if bad := [key for key, sign, _ in pairs if not key or not sign]:
        raise UserError(f"--slurm {bad[0]}: there is no '=' in it.", "Write it as --slurm partition=gpu.")
    return executors.ExecutorOptions(
        executor=asked["executor"],
        parallel=asked["parallel"],
        address=asked["address"],
        fetch=asked["fetch"],
        slurm={key: value for key, _, value in pairs},
    )
