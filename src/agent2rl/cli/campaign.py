"""agent2rl campaign"""

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import click

from agent2rl.campaign import executors
from agent2rl.campaign.claims import Claims
from agent2rl.campaign.conduct import conduct, jobs
from agent2rl.campaign.executor import Ended, Executor
from agent2rl.campaign.experiments import Experiment, experiments
from agent2rl.campaign.past import ENDINGS, Past
from agent2rl.campaign.plan import Experience, Plan, plan
from agent2rl.campaign.record import Campaign, read
from agent2rl.campaign.sessions import Session, going
from agent2rl.campaign.standing import Standing, failed, free, stand
from agent2rl.campaign.work import Job
from agent2rl.cli import run as one_run
from agent2rl.cli.campaign_table import Watch, print_plan, print_standings
from agent2rl.cli.main import COMMANDS
from agent2rl.cli.options import as_json, runs_dir
from agent2rl.core.errors import UserError
from agent2rl.core.records import Ending, RunSpec
from agent2rl.runner import machine
from agent2rl.runner.assets import repeatable
from agent2rl.runner.settings import Settings, settings
from agent2rl.store.paths import claims_folder

POLL_SECONDS = 0.5
Choose = Callable[[Sequence[Standing]], list[Standing]]


@click.group("campaign")
def command() -> None:
    """Run a matrix of experiments from a TOML file.

    \b
    agent2rl campaign plan campaigns/smoke.toml       what there is to run, and what it takes
    agent2rl campaign run campaigns/smoke.toml        run what is not done yet
    agent2rl campaign status campaigns/smoke.toml     how it stands
    agent2rl campaign stop campaigns/smoke.toml       end what is running, in order
    agent2rl campaign retry --failed campaigns/smoke.toml
    """


campaign_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


def where(function: Callable[..., None]) -> Callable[..., None]:
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


@dataclass(frozen=True)
class Opened:
    """A campaign and what the runs directory knows of it."""

    campaign: Campaign
    experiments: tuple[Experiment, ...]
    runs: Path
    settings: Settings
    past: Past
    claims: Claims

    @property
    def gpus(self) -> tuple[str, ...]:
        return machine.gpus(self.settings.gpus)

    def stand(self) -> list[Standing]:
        return stand(self.experiments, self.past, self.claims)

    def plan(
        self, standings: Sequence[Standing], chosen: Sequence[Standing], wanted: executors.Wanted
    ) -> Plan:
        return plan(
            self.campaign.name,
            self.campaign.about,
            standings,
            chosen,
            Experience(self.past.look()),
            wanted.slots(self.campaign.resources, self.gpus),
        )


def opened(file: Path, runs_dir: Path | None) -> Opened:
    found = settings()
    runs = (runs_dir or found.runs).absolute()
    campaign = read(file)
    made = experiments(campaign, _parser(found, runs))
    return Opened(campaign, made, runs, found, Past(runs), Claims(claims_folder(runs)))


def _parser(found: Settings, runs: Path) -> Callable[[Sequence[str], bool], RunSpec]:
    """`agent2rl run`'s own reading of its arguments. A hub model is looked up once for all of them."""
    models: dict[str, str] = {}

    def parse(arguments: Sequence[str], gpus: bool) -> RunSpec:
        try:
            options = dict(one_run.command.make_context("run", list(arguments)).params)
        except click.ClickException as error:
            raise UserError(error.format_message(), "`agent2rl run --help` has the options.") from error
        except click.exceptions.Exit as error:
            raise UserError("--help is no setting.", "Leave it out.") from error
        model = options["model"]
        options["model"] = models.setdefault(model, "") or repeatable(model)
        models[model] = options["model"]
        return one_run.specification(options, replace(found, gpus="0" if gpus else ""), runs)

    return parse


@command.command("plan")
@campaign_file
@where
@again
@limit
@runs_dir
@as_json
def plan_command(
    file: Path, again: bool, limit: int | None, runs_dir: Path | None, as_json: bool, **asked: Any
) -> None:
    """Print a campaign's runs: how each stands, and what the rest will take and cost."""
    campaign, wanted = opened(file, runs_dir), _wanted(asked)
    standings = campaign.stand()
    found = campaign.plan(standings, free(standings, again)[:limit], wanted)
    click.echo(found.model_dump_json()) if as_json else print_plan(found)


@command.command("run")
@campaign_file
@where
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
    wanted = _wanted(asked)
    if detach and wanted.executor != "slurm":
        raise UserError("--detach is for --executor slurm.", "The others' runs end with this command.")
    _run(opened(file, runs_dir), wanted, lambda found: free(found, again)[:limit], as_json, detach)


@command.command("retry")
@campaign_file
@click.option("--failed", "all_failed", is_flag=True, help="Those that failed for no fault of the agent.")
@click.option(
    "--ending",
    type=click.Choice(ENDINGS),
    multiple=True,
    help="Those whose last run ended so, e.g. out-of-memory.",
)
@where
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
    _run(
        opened(file, runs_dir),
        _wanted(asked),
        lambda found: failed(found, all_failed, endings)[:limit],
        as_json,
        False,
    )


@command.command("status")
@campaign_file
@click.option("--once", is_flag=True, help="Print the table once.  [default where there is no terminal]")
@runs_dir
@as_json
def status_command(file: Path, once: bool, runs_dir: Path | None, as_json: bool) -> None:
    """Show how a campaign stands, until all of it is done."""
    campaign = opened(file, runs_dir)
    standings = campaign.stand()
    if as_json:
        click.echo(_json(campaign, standings))
    elif once or not sys.stdout.isatty():
        print_standings(standings)
    else:
        with Watch(quiet=False) as watch:
            while any(one.state != "done" for one in standings):
                watch.show(standings)
                time.sleep(1)
                standings = campaign.stand()
            watch.show(standings)


@command.command("stop")
@campaign_file
@click.option("--now", is_flag=True, help="Do not wait for runs to end in order.")
@runs_dir
def stop_command(file: Path, now: bool, runs_dir: Path | None) -> None:
    """Ask everybody who runs this campaign to stop, and wait until all its runs have ended."""
    campaign = opened(file, runs_dir)
    sessions = going(campaign.runs, campaign.campaign.name)
    for session, _ in sessions:
        session.ask("now" if now else "stop")
    mine = {session.token for session, _ in sessions}
    told = -1
    while left := _held_by(campaign, mine):
        if len(left) != told:
            click.echo(f"{len(left)} still running: {', '.join(left)}", err=True)
        told = len(left)
        time.sleep(POLL_SECONDS)
    click.echo("nothing was running" if told < 0 else "all have ended")


def _held_by(campaign: Opened, sessions: set[str]) -> list[str]:
    """The runs that work for these sessions, by host."""
    now = campaign.claims.clock()
    holders = (campaign.claims.holder(each.id, now) for each in campaign.experiments)
    return [f"{holder.host}:{holder.pid}" for holder in holders if holder and holder.session in sessions]


def _run(campaign: Opened, wanted: executors.Wanted, choose: Choose, quiet: bool, detach: bool) -> None:
    standings = campaign.stand()
    chosen = choose(standings)
    stopped = bool(chosen) and _conduct(campaign, wanted, chosen, quiet, detach)
    if detach:
        return
    standings = campaign.stand()
    click.echo(_json(campaign, standings)) if quiet else print_standings(standings)
    if not quiet and any(one.state == "failed" for one in standings):
        click.echo("failed ones are run again by `agent2rl campaign retry --failed`")
    sys.exit(130 if stopped else 0 if all(one.state == "done" for one in standings) else 1)


def _conduct(
    campaign: Opened, wanted: executors.Wanted, chosen: Sequence[Standing], quiet: bool, detach: bool
) -> bool:
    """Do them; says whether somebody stopped it. A session that is left to a cluster stays open."""
    resources = campaign.campaign.resources
    wanted.slots(resources, campaign.gpus)
    session = Session.open(campaign.runs, campaign.campaign.name, wanted.executor)
    experience = Experience(campaign.past.look())
    work = jobs(chosen, session, str(campaign.runs), resources, experience, "resume" in COMMANDS)
    left = False
    try:
        with executors.opened(wanted, resources, campaign.gpus, session) as executor, Watch(quiet) as watch:
            if detach:
                executor.submit(work)
                left = True
                watch.say(f"{len(work)} submitted; `agent2rl campaign status` tells how they stand")
            else:
                _stop_on_signals(session, watch)
                _watched(campaign, work, executor, session, watch)
        return bool(session.asked())
    finally:
        if not left:
            session.close()


def _watched(campaign: Opened, work: list[Job], executor: Executor, session: Session, watch: Watch) -> None:
    def tell(news: list[Ended]) -> None:
        if news or watch.due:
            now = campaign.stand()
            watch.show(now)
            watch.ended(news, now)

    watch.show(campaign.stand())
    try:
        conduct(work, executor, session, campaign.claims, tell)
    except BaseException:
        session.ask("stop")  # else whoever works for it would go on
        raise


def _stop_on_signals(session: Session, watch: Watch) -> None:
    def handle(_: int, __: object) -> None:
        now = bool(session.asked())
        session.ask("now" if now else "stop")
        watch.say(
            "ending every run at once" if now else "ending every run in order (once more to abandon them)"
        )

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _wanted(asked: dict[str, Any]) -> executors.Wanted:
    pairs = [each.partition("=") for each in asked["slurm"]]
    if bad := [key for key, sign, _ in pairs if not key or not sign]:
        raise UserError(f"--slurm {bad[0]}: there is no '=' in it.", "Write it as --slurm partition=gpu.")
    return executors.Wanted(
        executor=asked["executor"],
        parallel=asked["parallel"],
        address=asked["address"],
        fetch=asked["fetch"],
        slurm={key: value for key, _, value in pairs},
    )


def _json(campaign: Opened, standings: Sequence[Standing]) -> str:
    found = [
        {
            "experiment": one.experiment.id,
            "cell": dict(one.experiment.cell),
            "state": one.state,
            "run_id": one.run.paths.run_id if one.run else None,
            "ending": one.run.ending if one.run else None,
            "seconds": one.run.seconds if one.run else None,
            "score": one.run.score if one.run else None,
            "improvement": one.run.improvement if one.run else None,
            "host": one.holder.host if one.holder else None,
            "detail": one.detail,
        }
        for one in standings
    ]
    return json.dumps({"campaign": campaign.campaign.name, "runs": found})
