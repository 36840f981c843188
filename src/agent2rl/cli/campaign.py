"""The command group `campaign`: plan, run, retry, status, stop and report."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis, analyse_campaign
from agent2rl.analysis.campaigns.paper_view import build_paper_view
from agent2rl.analysis.campaigns.run_digest import RunDigest, select_runs
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
from agent2rl.cli.leaderboard import gather_digests, include_contaminated, protocol, select_task_traits
from agent2rl.cli.opened_campaign import OpenedCampaign, open_campaign, run_campaign
from agent2rl.cli.options import DurationParam, FractionParam, as_json, runs_dir
from agent2rl.core.errors import UserError
from agent2rl.core.records import Ending, ScoringProtocol
from agent2rl.record.paths import RunPaths
from agent2rl.report.digests import find_trainings
from agent2rl.report.published_summary import read_summary

POLL_SECONDS = 0.5


@click.group("campaign")
def campaign_command() -> None:
    """Run a matrix of experiments from a TOML file.

    \b
    agent2rl campaign plan campaigns/smoke.toml       what is left to run, with time and cost
    agent2rl campaign run campaigns/smoke.toml        run what is not done yet
    agent2rl campaign status campaigns/smoke.toml     show the state of each run
    agent2rl campaign stop campaigns/smoke.toml       stop all runs cleanly
    agent2rl campaign retry --failed campaigns/smoke.toml
    agent2rl campaign report campaigns/smoke.toml     write a report over all runs
    """


campaign_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


def add_executor_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose where a campaign runs."""
    for option in reversed(
        (
            click.option(
                "--executor",
                type=click.Choice(["local", "ray", "slurm"]),
                default="local",
                show_default=True,
                help="Where to run: processes on this machine, a Ray cluster or a Slurm cluster.",
            ),
            click.option(
                "--parallel",
                type=click.IntRange(1),
                help="The number of runs at the same time.  [default: as many as fit]",
            ),
            click.option(
                "--address",
                metavar="HOST:PORT",
                help="Ray: the address of a running cluster.  [default: this machine]",
            ),
            click.option(
                "--fetch",
                is_flag=True,
                help="Ray: copy runs back here, for workers that do not share the runs directory.",
            ),
            click.option(
                "--slurm",
                metavar="KEY=VALUE",
                multiple=True,
                help="Slurm: an sbatch parameter, e.g. partition=gpu. Can be repeated.",
            ),
        )
    ):
        function = option(function)
    return function


again = click.option("--again", is_flag=True, help="Also repeat experiments that are done.")
limit = click.option("--limit", type=click.IntRange(1), help="Run at most this many experiments.")
budget = click.option(
    "--budget",
    type=DurationParam(),
    help="Time budget of every run, instead of the file's: 1h, 12h. Another budget is another experiment.",
)
fraction = click.option(
    "--fraction",
    type=FractionParam(),
    help="Take only this part of the campaign, above 0 and up to 1. It is balanced over tasks, agents, modes "
    "and seeds; a larger fraction contains a smaller one.",
)


@campaign_command.command("plan")
@campaign_file
@add_executor_options
@again
@limit
@budget
@fraction
@runs_dir
@as_json
def plan_command(
    file: Path,
    again: bool,
    limit: int | None,
    budget: float | None,
    fraction: float | None,
    runs_dir: Path | None,
    as_json: bool,
    **executor_options: Any,
) -> None:
    """Show the state of each experiment, and the time and cost of what is left.

    A plan can be made on any machine. It warns if this machine lacks something that the runs need: cores,
    memory, GPUs, a model, data or a key. `campaign run` refuses to start if not even one run fits here.

    \b
    agent2rl campaign plan campaigns/paper.toml --budget 12h
    agent2rl campaign plan campaigns/paper.toml --fraction 0.1
    """
    options = _parse_executor_options(executor_options)
    campaign = open_campaign(file, runs_dir, budget, fraction)
    statuses = campaign.find_statuses()
    plan = campaign.make_plan(statuses, select_runnable(statuses, again)[:limit], options)
    click.echo(plan.model_dump_json()) if as_json else print_plan(plan)
    for warning in () if as_json else plan.warnings:
        click.echo(f"warning: {warning}", err=True)


@campaign_command.command("run")
@campaign_file
@add_executor_options
@again
@limit
@budget
@fraction
@click.option("--detach", is_flag=True, help="Slurm: submit the jobs and exit.")
@runs_dir
@as_json
def run_command(
    file: Path,
    again: bool,
    limit: int | None,
    budget: float | None,
    fraction: float | None,
    detach: bool,
    runs_dir: Path | None,
    as_json: bool,
    **executor_options: Any,
) -> None:
    """Run the experiments that are not done yet.

    Ctrl-C stops each run cleanly; a second Ctrl-C aborts them. You can run this command several times on the
    same runs directory, here or on other machines, to share the work: no experiment runs twice.

    Exit code: 0 if every experiment is done, 1 if not, 130 if it was stopped.
    """
    options = _parse_executor_options(executor_options)
    if detach and options.executor != "slurm":
        raise UserError(
            "--detach needs --executor slurm.", "With other executors, runs end with this command."
        )
    run_campaign(
        open_campaign(file, runs_dir, budget, fraction),
        options,
        lambda statuses: select_runnable(statuses, again)[:limit],
        as_json,
        detach,
    )


@campaign_command.command("retry")
@campaign_file
@click.option(
    "--failed", "all_failed", is_flag=True, help="Retry runs that failed through no fault of the agent."
)
@click.option(
    "--ending",
    type=click.Choice(ENDINGS),
    multiple=True,
    help="Retry experiments with this ending of the last run, e.g. out-of-memory. Can be repeated.",
)
@add_executor_options
@limit
@budget
@runs_dir
@as_json
def retry_command(
    file: Path,
    all_failed: bool,
    ending: tuple[str, ...],
    limit: int | None,
    budget: float | None,
    runs_dir: Path | None,
    as_json: bool,
    **executor_options: Any,
) -> None:
    """Run failed experiments again.

    A failure of the agent (agent-failed, out-of-memory, …) is a result. It is retried only if you name it
    with --ending, because taking the better of two runs is not a fair comparison.
    """
    if not all_failed and not ending:
        raise UserError("Choose what to retry.", "Use --failed, or --ending NAME.")
    endings = cast(tuple[Ending, ...], ending)
    run_campaign(
        open_campaign(file, runs_dir, budget),
        _parse_executor_options(executor_options),
        lambda statuses: select_failed(statuses, all_failed, endings)[:limit],
        as_json,
    )


@campaign_command.command("status")
@campaign_file
@click.option(
    "--once", is_flag=True, help="Print the table once and exit.  [default if stdout is not a terminal]"
)
@budget
@runs_dir
@as_json
def status_command(
    file: Path, once: bool, budget: float | None, runs_dir: Path | None, as_json: bool
) -> None:
    """Show the state of each experiment, and update it until all are done."""
    campaign = open_campaign(file, runs_dir, budget)
    statuses = campaign.find_statuses()
    if as_json:
        click.echo(opened_campaign.format_statuses_json(campaign, statuses))
    elif once or not sys.stdout.isatty():
        print_statuses(statuses)
    else:
        with CampaignDisplay(quiet=False) as watch:
            while any(one.state != "done" for one in statuses):
                watch.show_statuses(statuses)
                time.sleep(1)
                statuses = campaign.find_statuses()
            watch.show_statuses(statuses)


@campaign_command.command("stop")
@campaign_file
@click.option("--now", is_flag=True, help="Abort the runs instead of stopping them cleanly.")
@budget
@runs_dir
def stop_command(file: Path, now: bool, budget: float | None, runs_dir: Path | None) -> None:
    """Stop all processes that run this campaign, and wait until all its runs have ended."""
    campaign = open_campaign(file, runs_dir, budget)
    sessions = list_open_sessions(campaign.runs, campaign.campaign.name)
    for session, _ in sessions:
        session.request_stop("now" if now else "stop")
    tokens = {session.token for session, _ in sessions}
    last_count = -1
    while running := _list_holders(campaign, tokens) or _list_starting_sessions(sessions):
        if len(running) != last_count:
            click.echo(f"{len(running)} still running: {', '.join(running)}", err=True)
        last_count = len(running)
        time.sleep(POLL_SECONDS)
    click.echo("nothing was running" if last_count < 0 else "all have ended")


@campaign_command.command("report")
@click.argument("source", metavar="FILE|RUNS", type=click.Path(path_type=Path, exists=True))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the report to this folder.  [default: campaign-NAME in the current one]",
)
@click.option(
    "--paper",
    is_flag=True,
    help="Write the paper's figures 3, 5, 6, 7 and 9 and its coverage table instead. Uses --protocol paper "
    "unless you give another one.",
)
@protocol
@include_contaminated
@budget
@runs_dir
@as_json
@click.pass_context
def report_command(
    context: click.Context,
    source: Path,
    output: Path | None,
    paper: bool,
    protocol: ScoringProtocol,
    include_contaminated: bool,
    budget: float | None,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Write a report over many runs: the runs of a campaign FILE, or all runs in the directory RUNS.

    \b
    campaign.html   one page with all figures
    campaign.md     the same as Markdown; campaign.json for programs
    figures/        each figure as SVG and PNG, and its data as CSV
    leaderboard.csv, cells.csv
    leaderboard.tex, comparisons-*.tex   tables for a paper

    \b
    With --paper:
    paper.html, paper.md, paper.json
    figures/        figure-3, -5, -6, -7 and -9, each as SVG, PNG and CSV
    coverage.csv, coverage-runs.csv
    summaries/      the summary.jsonl of each run, in the published schema

    \b
    agent2rl campaign report campaigns/smoke.toml -o docs/results/smoke
    agent2rl campaign report campaigns/paper.toml --paper --budget 12h
    agent2rl campaign report runs/
    """
    if paper and context.get_parameter_source("protocol") is ParameterSource.DEFAULT:
        protocol = "paper"
    name, about, runs = opened_campaign.find_campaign_runs(source, runs_dir, budget)
    gathered = gather_digests(runs)
    if not paper and not any(each.state == "finished" for each in gathered.digests):
        raise UserError(
            f"None of the {len(runs)} runs of {source} is finished.",
            "Wait for the first one (`agent2rl campaign status FILE`), or resume a crashed one.",
        )
    analysis = analyse_campaign(
        gathered.digests,
        select_task_traits(gathered.digests),
        name,
        about,
        protocol,
        gathered.unreadable,
        include_contaminated,
        None if paper else find_trainings(runs),
    )
    if paper:
        target = output or Path(f"paper-{name or 'all'}")
        _write_paper_report(analysis, gathered.digests, runs, target, include_contaminated, as_json)
        return
    from agent2rl.report import campaign_page

    written = campaign_page.write(analysis, output or Path(f"campaign-{name or 'all'}"))
    if as_json:
        click.echo(analysis.model_dump_json())
        return
    click.echo(campaign_page.sentence(analysis))
    for note in campaign_page.notes(analysis):
        click.echo(f"note: {note}", err=True)
    click.echo(f"report: {written}")


def _write_paper_report(
    analysis: CampaignAnalysis,
    digests: Sequence[RunDigest],
    runs: Sequence[RunPaths],
    output: Path,
    include_contaminated: bool,
    as_json: bool,
) -> None:
    """Write the paper's figures; refuse if no run has a result to draw."""
    protocol = analysis.protocol
    shown = select_runs(digests, protocol, include_contaminated).runs
    if not any(not each.excluded for each in shown):
        raise UserError(
            f"None of the {len(digests)} runs is finished and has a gain under protocol {protocol}"
            f" ({analysis.other_protocol} have another protocol).",
            "Choose another protocol with --protocol, or run the campaign first.",
        )
    finished = {each.run_id for each in shown if each.state != "running"}
    summaries = {paths.run_id: read_summary(paths) for paths in runs if paths.run_id in finished}
    from agent2rl.report import paper_page

    view = build_paper_view(digests, protocol, include_contaminated)
    written = paper_page.write_paper_report(analysis, view, summaries, output)
    if as_json:
        click.echo((output / "paper.json").read_text(encoding="utf-8"), nl=False)
        return
    for note in view.deviations:
        click.echo(f"note: {note}", err=True)
    for figure in paper_page.list_paper_figures(analysis, view):
        click.echo(f"figure {figure.number}: {f'missing. {figure.missing}' if figure.missing else 'drawn'}")
    click.echo(f"report: {written}")


def _list_holders(campaign: OpenedCampaign, sessions: set[str]) -> list[str]:
    """List the runs of these sessions as host:pid."""
    now = campaign.claims.read_storage_clock()
    holders = (campaign.claims.find_holder(each.id, now) for each in campaign.experiments)
    return [f"{holder.host}:{holder.pid}" for holder in holders if holder and holder.session in sessions]


def _list_starting_sessions(sessions: Sequence[tuple[CampaignSession, SessionRecord]]) -> list[str]:
    """List the open sessions of this machine: one may be about to claim an experiment."""
    here = read_machine_id()
    records = (record for session, record in sessions if not session.paths.ended.exists())
    return [f"{r.host}:{r.pid}" for r in records if r.machine == here and not r.dead]


def _parse_executor_options(executor_options: dict[str, Any]) -> executors.ExecutorOptions:
    pairs = [each.partition("=") for each in executor_options["slurm"]]
    if bad := [key for key, sign, _ in pairs if not key or not sign]:
        raise UserError(f"--slurm {bad[0]}: '=' is missing.", "Write it as --slurm partition=gpu.")
    return executors.ExecutorOptions(
        executor=executor_options["executor"],
        parallel=executor_options["parallel"],
        address=executor_options["address"],
        fetch=executor_options["fetch"],
        slurm={key: value for key, _, value in pairs},
    )
