"""Open a campaign for a command: read its file, find the state of its experiments, and run them."""

import json
import logging
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
from agent2rl.campaign.campaign_file import (
    CampaignSpec,
    Experiment,
    expand_experiments,
    read_campaign,
    replace_budget,
)
from agent2rl.campaign.claims_and_sessions import CampaignSession, ExperimentClaims
from agent2rl.campaign.experiment_status import ExperimentStatus, RunHistory, find_statuses
from agent2rl.campaign.jobs import CampaignJob, EndedJob, JobExecutor, make_jobs, run_jobs
from agent2rl.campaign.plan import CampaignPlan, CostEstimator, make_plan, select_fraction
from agent2rl.campaign.requirements import count_slots_or_warn, find_missing
from agent2rl.cli import run as one_run
from agent2rl.cli.campaign_table import CampaignDisplay, format_cost_lines, print_statuses
from agent2rl.cli.leaderboard import require_runs_in
from agent2rl.cli.main import COMMANDS
from agent2rl.core.errors import UserError
from agent2rl.core.records import RunSpec
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.gateway.prices import load_prices
from agent2rl.record.paths import RunPaths, claims_folder
from agent2rl.run import machine
from agent2rl.run.assets import pin_model_name
from agent2rl.run.settings import Settings, read_settings

logger = logging.getLogger(__name__)

Choose = Callable[[Sequence[ExperimentStatus]], list[ExperimentStatus]]


@dataclass(frozen=True)
class OpenedCampaign:
    """A campaign with its experiments, settings, and its earlier runs and claims in the runs directory."""

    campaign: CampaignSpec
    experiments: tuple[Experiment, ...]
    runs: Path
    settings: Settings
    history: RunHistory
    claims: ExperimentClaims
    fraction: float | None = None
    """The part that was chosen; None for the whole campaign."""
    whole: int = 0
    """Number of experiments of the whole campaign."""

    @property
    def gpus(self) -> tuple[str, ...]:
        return machine.list_visible_gpus(self.settings.gpus)

    def find_statuses(self) -> list[ExperimentStatus]:
        return find_statuses(self.experiments, self.history, self.claims)

    def make_plan(
        self,
        statuses: Sequence[ExperimentStatus],
        chosen: Sequence[ExperimentStatus],
        options: executors.ExecutorOptions,
    ) -> CampaignPlan:
        """Plan the chosen experiments. What this machine lacks for them is a warning."""
        resources, prices = self.campaign.resources, load_prices(self.settings.prices)
        slots, too_small = count_slots_or_warn(options, resources, self.gpus)
        plan = make_plan(
            self.campaign.name,
            self.campaign.about,
            statuses,
            chosen,
            CostEstimator(self.history.list_runs_by_experiment()),
            slots,
            resources.gpus,
            prices,
        )
        needed = [status.experiment for status in chosen if status.state != "running"]
        missing = find_missing(needed, self.settings, prices)
        return plan.model_copy(
            update={
                "fraction": self.fraction,
                "whole": self.whole,
                "warnings": too_small + missing if needed else (),
            }
        )


def open_campaign(
    file: Path, runs_dir: Path | None, budget: float | None = None, fraction: float | None = None
) -> OpenedCampaign:
    """Read a campaign file and expand its experiments: all, or a balanced part of them.

    `budget` replaces every time budget of the file, in seconds.
    """
    settings = read_settings()
    runs = (runs_dir or settings.runs).absolute()
    campaign = read_campaign(file)
    if budget is not None:
        campaign = replace_budget(campaign, budget)
    whole = expand_experiments(campaign, _make_argument_parser(settings))
    experiments = whole if fraction is None else select_fraction(whole, fraction)
    logger.debug("%s: %d experiments, runs in %s", campaign.name, len(experiments), runs)
    return OpenedCampaign(
        campaign,
        experiments,
        runs,
        settings,
        RunHistory(runs),
        ExperimentClaims(claims_folder(runs)),
        fraction,
        len(whole),
    )


def _make_argument_parser(settings: Settings) -> Callable[[Sequence[str], bool], RunSpec]:
    """Return a parser that reads arguments exactly as `agent2rl run` does. Looks up each hub model once."""
    models: dict[str, str] = {}

    def parse(arguments: Sequence[str], gpus: bool) -> RunSpec:
        try:
            options = dict(one_run.run_command.make_context("run", list(arguments)).params)
        except click.ClickException as error:
            raise UserError(error.format_message(), "`agent2rl run --help` lists the options.") from error
        except click.exceptions.Exit as error:
            raise UserError("--help is not a setting.", "Remove it.") from error
        _refuse_repeated(arguments)
        model = options["model"]
        options["model"] = models.setdefault(model, "") or pin_model_name(model)
        models[model] = options["model"]
        # What the file asks for decides the engine, not the GPUs of this machine: it may run
        # elsewhere.
        spec = one_run.make_run_spec(options, replace(settings, gpus="0" if gpus else ""))
        registry.require_known("tasks", spec.task)
        registry.require_known("agents", spec.agent)
        if spec.sandbox != AUTO_SANDBOX:
            registry.require_known("sandboxes", spec.sandbox)
        registry.require_loader(spec.engine)
        return spec

    return parse


def _refuse_repeated(arguments: Sequence[str]) -> None:
    """Reject repeated single-value options: click would silently use the last value."""
    repeatable = {name for option in one_run.run_command.params if option.multiple for name in option.opts}
    counts = Counter(argument.partition("=")[0] for argument in arguments)
    if repeated := [name for name, count in counts.items() if count > 1 and name not in repeatable]:
        name = repeated[0].removeprefix("--")
        raise UserError(
            f"{name} takes only one value.", "To vary a setting, use an axis: task, agent, seed, …"
        )


def run_campaign(
    campaign: OpenedCampaign,
    options: executors.ExecutorOptions,
    choose: Choose,
    quiet: bool,
    detach: bool = False,
) -> None:
    """Run the chosen experiments, print the state of all, and exit."""
    statuses = campaign.find_statuses()
    chosen = choose(statuses)
    if chosen:
        options.count_slots(campaign.campaign.resources, campaign.gpus)  # refuses a machine that is too small
    if chosen and not quiet:
        for line in format_cost_lines(campaign.make_plan(statuses, chosen, options)):
            click.echo(line, err=True)
    stopped = bool(chosen) and _run_chosen(campaign, options, chosen, quiet, detach)
    if detach:
        return
    statuses = campaign.find_statuses()
    click.echo(format_statuses_json(campaign, statuses)) if quiet else print_statuses(statuses)
    if not quiet and any(status.state == "failed" for status in statuses):
        click.echo("run failed experiments again with `agent2rl campaign retry --failed`")
    sys.exit(130 if stopped else 0 if all(status.state == "done" for status in statuses) else 1)


def _run_chosen(
    campaign: OpenedCampaign,
    options: executors.ExecutorOptions,
    chosen: Sequence[ExperimentStatus],
    quiet: bool,
    detach: bool,
) -> bool:
    """Run the chosen experiments and return whether they were stopped. A detached session stays open."""
    resources = campaign.campaign.resources
    options.count_slots(resources, campaign.gpus)
    campaign.claims.require_writable()
    session = CampaignSession.open(campaign.runs, campaign.campaign.name, options.executor)
    experience = CostEstimator(campaign.history.list_runs_by_experiment())
    jobs = make_jobs(chosen, session, str(campaign.runs), resources, experience, "resume" in COMMANDS)
    detached = False
    try:
        by_bus = campaign.settings.gpus is None
        opened_executor = executors.open_executor(options, resources, campaign.gpus, by_bus, session)
        with opened_executor as executor, CampaignDisplay(quiet) as display:
            if detach:
                executor.submit(jobs)
                detached = True
                display.print_line(f"{len(jobs)} submitted; `agent2rl campaign status` shows their state")
            else:
                _stop_on_signals(session, display)
                _run_with_display(campaign, jobs, executor, session, display)
        return bool(session.read_stop_request())
    finally:
        if not detached:
            session.close()


def _run_with_display(
    campaign: OpenedCampaign,
    jobs: list[CampaignJob],
    executor: JobExecutor,
    session: CampaignSession,
    display: CampaignDisplay,
) -> None:
    def show_progress(ended: list[EndedJob]) -> None:
        if ended or display.due:
            statuses = campaign.find_statuses()
            display.show_statuses(statuses)
            display.print_ended_jobs(ended, statuses)

    display.show_statuses(campaign.find_statuses())
    try:
        run_jobs(jobs, executor, session, campaign.claims, show_progress)
    except BaseException:
        with suppress(OSError):
            session.request_stop("stop")  # otherwise the workers of this session would continue
        raise


def _stop_on_signals(session: CampaignSession, display: CampaignDisplay) -> None:
    def handle(_: int, __: object) -> None:
        at_once = bool(session.read_stop_request())
        with suppress(OSError):  # a full disk: workers in this process still get the request
            session.request_stop("now" if at_once else "stop")
        with suppress(RuntimeError, OSError):  # interrupted another print, or stderr is closed
            display.print_line(
                "aborting every run" if at_once else "stopping every run (press Ctrl-C again to abort them)"
            )

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def find_campaign_runs(
    source: Path, runs_dir: Path | None, budget: float | None = None
) -> tuple[str, str, list[RunPaths]]:
    """Return the name and description of a campaign and all its runs; for a directory, all runs in it."""
    if source.is_dir():
        if budget is not None:
            raise UserError("--budget needs a campaign file.", "A runs directory has no budget to replace.")
        return "", "", require_runs_in(source.absolute())
    campaign = open_campaign(source, runs_dir, budget)
    runs_by_experiment = campaign.history.list_runs_by_experiment()
    runs = [
        run.paths for experiment in campaign.experiments for run in runs_by_experiment.get(experiment.id, [])
    ]
    if not runs:
        raise UserError(
            f"{campaign.campaign.name} has no runs in {campaign.runs}.",
            "Start it with `agent2rl campaign run`, or choose another runs directory with --runs-dir.",
        )
    return campaign.campaign.name, campaign.campaign.about, runs


def format_statuses_json(campaign: OpenedCampaign, statuses: Sequence[ExperimentStatus]) -> str:
    """Return the state of all experiments of a campaign as JSON."""
    runs = [
        {
            "experiment": status.experiment.id,
            "cell": dict(status.experiment.cell),
            "state": status.state,
            "run_id": status.run.paths.run_id if status.run else None,
            "ending": status.run.ending if status.run else None,
            "seconds": status.run.seconds if status.run else None,
            "score": status.run.score if status.run else None,
            "improvement": status.run.improvement if status.run else None,
            "contaminated": status.run.contaminated if status.run else None,
            "host": status.holder.host if status.holder else None,
            "detail": status.detail,
        }
        for status in statuses
    ]
    return json.dumps({"campaign": campaign.campaign.name, "runs": runs})
