"""A campaign that a command works on: read, looked at, seen through."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click

from agent2rl import registry
from agent2rl.campaign import executors
from agent2rl.campaign.claims import Claims
from agent2rl.campaign.conduct import conduct, jobs
from agent2rl.campaign.executor import Ended, Executor
from agent2rl.campaign.experiments import Experiment, experiments
from agent2rl.campaign.past import Past
from agent2rl.campaign.plan import Experience, Plan, plan
from agent2rl.campaign.record import Campaign, read
from agent2rl.campaign.sessions import Session
from agent2rl.campaign.standing import Standing, stand
from agent2rl.campaign.work import Job
from agent2rl.cli import run as one_run
from agent2rl.cli.campaign_table import Watch, print_standings
from agent2rl.cli.gathering import runs_in
from agent2rl.cli.main import COMMANDS
from agent2rl.core.errors import UserError
from agent2rl.core.records import RunSpec
from agent2rl.runner import machine
from agent2rl.runner.assets import repeatable
from agent2rl.runner.settings import Settings, settings
from agent2rl.store.paths import RunPaths, claims_folder

Choose = Callable[[Sequence[Standing]], list[Standing]]


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
    made = experiments(campaign, _parser(found))
    return Opened(campaign, made, runs, found, Past(runs), Claims(claims_folder(runs)))


def _parser(found: Settings) -> Callable[[Sequence[str], bool], RunSpec]:
    """`agent2rl run`'s own reading of its arguments. A hub model is looked up once for all of them."""
    models: dict[str, str] = {}

    def parse(arguments: Sequence[str], gpus: bool) -> RunSpec:
        try:
            options = dict(one_run.command.make_context("run", list(arguments)).params)
        except click.ClickException as error:
            raise UserError(error.format_message(), "`agent2rl run --help` has the options.") from error
        except click.exceptions.Exit as error:
            raise UserError("--help is no setting.", "Leave it out.") from error
        _refuse_repeated(arguments)
        model = options["model"]
        options["model"] = models.setdefault(model, "") or repeatable(model)
        models[model] = options["model"]
        spec = one_run.specification(options, replace(found, gpus="0" if gpus else ""))
        registry.require("tasks", spec.task)
        registry.require("agents", spec.agent)
        registry.require("sandboxes", spec.sandbox)
        registry.require_loader(spec.engine)
        return spec

    return parse


def _refuse_repeated(arguments: Sequence[str]) -> None:
    """Of an option that has one value the last one would count, and nobody would hear of the others."""
    several = {name for option in one_run.command.params if option.multiple for name in option.opts}
    given = Counter(each.partition("=")[0] for each in arguments)
    if repeated := [name for name, times in given.items() if times > 1 and name not in several]:
        name = repeated[0].removeprefix("--")
        raise UserError(f"{name} has one value.", "What is to vary is an axis: task, agent, seed, …")


def see_through(
    campaign: Opened, wanted: executors.Wanted, choose: Choose, quiet: bool, detach: bool = False
) -> None:
    """Run what is chosen, print how all stand then, and exit."""
    standings = campaign.stand()
    chosen = choose(standings)
    stopped = bool(chosen) and _conduct(campaign, wanted, chosen, quiet, detach)
    if detach:
        return
    standings = campaign.stand()
    click.echo(as_json(campaign, standings)) if quiet else print_standings(standings)
    if not quiet and any(one.state == "failed" for one in standings):
        click.echo("failed ones are run again by `agent2rl campaign retry --failed`")
    sys.exit(130 if stopped else 0 if all(one.state == "done" for one in standings) else 1)


def _conduct(
    campaign: Opened, wanted: executors.Wanted, chosen: Sequence[Standing], quiet: bool, detach: bool
) -> bool:
    """Do them; says whether somebody stopped it. A session that is left to a cluster stays open."""
    resources = campaign.campaign.resources
    wanted.slots(resources, campaign.gpus)
    campaign.claims.require()
    session = Session.open(campaign.runs, campaign.campaign.name, wanted.executor)
    experience = Experience(campaign.past.look())
    work = jobs(chosen, session, str(campaign.runs), resources, experience, "resume" in COMMANDS)
    left = False
    try:
        by_bus = campaign.settings.gpus is None
        place = executors.opened(wanted, resources, campaign.gpus, by_bus, session)
        with place as executor, Watch(quiet) as watch:
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
        with suppress(OSError):
            session.ask("stop")  # else whoever works for it would go on
        raise


def _stop_on_signals(session: Session, watch: Watch) -> None:
    def handle(_: int, __: object) -> None:
        now = bool(session.asked())
        with suppress(OSError):  # a full disk: those who work in this process hear of it all the same
            session.ask("now" if now else "stop")
        with suppress(RuntimeError, OSError):  # in the midst of another line, or nobody reads any more
            watch.say(
                "ending every run at once" if now else "ending every run in order (once more to abandon them)"
            )

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def runs_of(source: Path, runs_dir: Path | None) -> tuple[str, str, list[RunPaths]]:
    """A campaign's name, what it is about, and all runs of its experiments; of a directory, all its runs."""
    if source.is_dir():
        return "", "", runs_in(source.absolute())
    campaign = opened(source, runs_dir)
    past = campaign.past.look()
    found = [run.paths for each in campaign.experiments for run in past.get(each.id, [])]
    if not found:
        raise UserError(
            f"Nothing of {campaign.campaign.name} has been run in {campaign.runs}.",
            "`agent2rl campaign run` does it; --runs-dir names another runs directory.",
        )
    return campaign.campaign.name, campaign.campaign.about, found


def as_json(campaign: Opened, standings: Sequence[Standing]) -> str:
    """How a campaign stands, for programs."""
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
            "contaminated": one.run.contaminated if one.run else None,
            "host": one.holder.host if one.holder else None,
            "detail": one.detail,
        }
        for one in standings
    ]
    return json.dumps({"campaign": campaign.campaign.name, "runs": found})
