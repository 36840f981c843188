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
from agent2rl.campaign.campaign_file import CampaignSpec, Experiment, expand_experiments, read_campaign
from agent2rl.campaign.claims_and_sessions import CampaignSession, ExperimentClaims
from agent2rl.campaign.experiment_status import ExperimentStatus, RunHistory, find_statuses
from agent2rl.campaign.jobs import CampaignJob, EndedJob, JobExecutor, make_jobs, run_jobs
from agent2rl.campaign.plan import CampaignPlan, CostEstimator, make_plan
from agent2rl.cli import run as one_run
from agent2rl.cli.campaign_table import CampaignDisplay, print_statuses
from agent2rl.cli.main import COMMANDS
from agent2rl.cli.run_digests import require_runs_in
from agent2rl.core.errors import UserError
from agent2rl.core.records import RunSpec
from agent2rl.record.paths import RunPaths, claims_folder
from agent2rl.run import machine
from agent2rl.run.assets import pin_model_name
from agent2rl.run.settings import Settings, read_settings

Choose = Callable[[Sequence[ExperimentStatus]], list[ExperimentStatus]]


@dataclass(frozen=True)
class OpenedCampaign:
    """A campaign and what the runs directory knows of it."""

    campaign: CampaignSpec
    experiments: tuple[Experiment, ...]
    runs: Path
    settings: Settings
    past: RunHistory
    claims: ExperimentClaims

    @property
    def gpus(self) -> tuple[str, ...]:
        return machine.list_visible_gpus(self.settings.gpus)

    def find_statuses(self) -> list[ExperimentStatus]:
        return find_statuses(self.experiments, self.past, self.claims)

    def make_plan(
        self,
        standings: Sequence[ExperimentStatus],
        chosen: Sequence[ExperimentStatus],
        wanted: executors.ExecutorOptions,
    ) -> CampaignPlan:
        return make_plan(
            self.campaign.name,
            self.campaign.about,
            standings,
            chosen,
            CostEstimator(self.past.list_runs_by_experiment()),
            wanted.count_slots(self.campaign.resources, self.gpus),
        )


def open_campaign(file: Path, runs_dir: Path | None) -> OpenedCampaign:
    found = read_settings()
    runs = (runs_dir or found.runs).absolute()
    campaign = read_campaign(file)
    made = expand_experiments(campaign, _make_argument_parser(found))
    return OpenedCampaign(
        campaign, made, runs, found, RunHistory(runs), ExperimentClaims(claims_folder(runs))
    )


def _make_argument_parser(found: Settings) -> Callable[[Sequence[str], bool], RunSpec]:
    """`agent2rl run`'s own reading of its arguments. A hub model is looked up once for all of them."""
    models: dict[str, str] = {}

    def parse(arguments: Sequence[str], gpus: bool) -> RunSpec:
        try:
            options = dict(one_run.run_command.make_context("run", list(arguments)).params)
        except click.ClickException as error:
            raise UserError(error.format_message(), "`agent2rl run --help` has the options.") from error
        except click.exceptions.Exit as error:
            raise UserError("--help is no setting.", "Leave it out.") from error
        _refuse_repeated(arguments)
        model = options["model"]
        options["model"] = models.setdefault(model, "") or pin_model_name(model)
        models[model] = options["model"]
        spec = one_run.make_run_spec(options, replace(found, gpus="0" if gpus else ""))
        registry.require_known("tasks", spec.task)
        registry.require_known("agents", spec.agent)
        registry.require_known("sandboxes", spec.sandbox)
        registry.require_loader(spec.engine)
        return spec

    return parse


def _refuse_repeated(arguments: Sequence[str]) -> None:
    """Of an option that has one value the last one would count, and nobody would hear of the others."""
    several = {name for option in one_run.run_command.params if option.multiple for name in option.opts}
    given = Counter(each.partition("=")[0] for each in arguments)
    if repeated := [name for name, times in given.items() if times > 1 and name not in several]:
        name = repeated[0].removeprefix("--")
        raise UserError(f"{name} has one value.", "What is to vary is an axis: task, agent, seed, …")


def run_campaign(
    campaign: OpenedCampaign,
    wanted: executors.ExecutorOptions,
    choose: Choose,
    quiet: bool,
    detach: bool = False,
) -> None:
    """Run what is chosen, print how all stand then, and exit."""
    standings = campaign.find_statuses()
    chosen = choose(standings)
    stopped = bool(chosen) and _run_chosen(campaign, wanted, chosen, quiet, detach)
    if detach:
        return
    standings = campaign.find_statuses()
    click.echo(format_statuses_json(campaign, standings)) if quiet else print_statuses(standings)
    if not quiet and any(one.state == "failed" for one in standings):
        click.echo("failed ones are run again by `agent2rl campaign retry --failed`")
    sys.exit(130 if stopped else 0 if all(one.state == "done" for one in standings) else 1)


def _run_chosen(
    campaign: OpenedCampaign,
    wanted: executors.ExecutorOptions,
    chosen: Sequence[ExperimentStatus],
    quiet: bool,
    detach: bool,
) -> bool:
    """Do them; says whether somebody stopped it. A session that is left to a cluster stays open."""
    resources = campaign.campaign.resources
    wanted.count_slots(resources, campaign.gpus)
    campaign.claims.require_writable()
    session = CampaignSession.open(campaign.runs, campaign.campaign.name, wanted.executor)
    experience = CostEstimator(campaign.past.list_runs_by_experiment())
    work = make_jobs(chosen, session, str(campaign.runs), resources, experience, "resume" in COMMANDS)
    left = False
    try:
        by_bus = campaign.settings.gpus is None
        place = executors.open_executor(wanted, resources, campaign.gpus, by_bus, session)
        with place as executor, CampaignDisplay(quiet) as watch:
            if detach:
                executor.submit(work)
                left = True
                watch.print_line(f"{len(work)} submitted; `agent2rl campaign status` tells how they stand")
            else:
                _stop_on_signals(session, watch)
                _run_with_display(campaign, work, executor, session, watch)
        return bool(session.read_stop_request())
    finally:
        if not left:
            session.close()


def _run_with_display(
    campaign: OpenedCampaign,
    work: list[CampaignJob],
    executor: JobExecutor,
    session: CampaignSession,
    watch: CampaignDisplay,
) -> None:
    def tell(news: list[EndedJob]) -> None:
        if news or watch.due:
            now = campaign.find_statuses()
            watch.show_statuses(now)
            watch.print_ended_jobs(news, now)

    watch.show_statuses(campaign.find_statuses())
    try:
        run_jobs(work, executor, session, campaign.claims, tell)
    except BaseException:
        with suppress(OSError):
            session.request_stop("stop")  # else whoever works for it would go on
        raise


def _stop_on_signals(session: CampaignSession, watch: CampaignDisplay) -> None:
    def handle(_: int, __: object) -> None:
        now = bool(session.read_stop_request())
        with suppress(OSError):  # a full disk: those who work in this process hear of it all the same
            session.request_stop("now" if now else "stop")
        with suppress(RuntimeError, OSError):  # in the midst of another line, or nobody reads any more
            watch.print_line(
                "ending every run at once" if now else "ending every run in order (once more to abandon them)"
            )

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def find_campaign_runs(source: Path, runs_dir: Path | None) -> tuple[str, str, list[RunPaths]]:
    """A campaign's name, what it is about, and all runs of its experiments; of a directory, all its runs."""
    if source.is_dir():
        return "", "", require_runs_in(source.absolute())
    campaign = open_campaign(source, runs_dir)
    past = campaign.past.list_runs_by_experiment()
    found = [run.paths for each in campaign.experiments for run in past.get(each.id, [])]
    if not found:
        raise UserError(
            f"Nothing of {campaign.campaign.name} has been run in {campaign.runs}.",
            "`agent2rl campaign run` does it; --runs-dir names another runs directory.",
        )
    return campaign.campaign.name, campaign.campaign.about, found


def format_statuses_json(campaign: OpenedCampaign, standings: Sequence[ExperimentStatus]) -> str:
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
