"""`agent2rl run` and `agent2rl resume`: start or resume a run, follow it, and show its report."""

import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import click

from agent2rl import registry
from agent2rl.cli.options import (
    CountParam,
    DollarsParam,
    DurationParam,
    SizeParam,
    TemperatureParam,
    as_json,
    complete_names,
    complete_runs,
    judge,
    no_report,
    resolve_run,
    runs_dir,
    search,
    track,
    track_group,
)
from agent2rl.cli.terminal_output import TerminalProgress, print_run
from agent2rl.core.errors import UserError
from agent2rl.core.events import TimelineEvent
from agent2rl.core.records import Budget, RequestedLimits, RunSpec
from agent2rl.environments.search.backend_names import resolve_name
from agent2rl.evaluators.task_data import read_prompts
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.record.recorder import Notify
from agent2rl.report import export, run_report
from agent2rl.run.assets import choose_default_engine, pin_model_name
from agent2rl.run.execution import FinishedRun, resume_run, start_run
from agent2rl.run.machine import list_visible_gpus
from agent2rl.run.settings import Settings, read_settings
from agent2rl.trackers import mirror
from agent2rl.trackers.follow import TrackerProcesses, get_started_run_id

# What `run` and `resume` share: a run goes, is watched, can be stopped, and is shown at its end.


@dataclass(frozen=True)
class RunOutputOptions:
    """Who hears of a run, and what is left when it is over."""

    as_json: bool
    no_report: bool
    track: Sequence[str] = ()
    track_group: str | None = None


def run_and_report(
    runs: Path, telling: RunOutputOptions, work: Callable[[Notify, threading.Event], FinishedRun]
) -> NoReturn:
    for name in telling.track:
        mirror.require_tracker(name)
    stop = threading.Event()
    _stop_on_signals(stop)
    as_json = telling.as_json
    if not as_json:
        click.echo(f"watch:  {_format_view_command(runs)}", err=True)
    with TrackerProcesses(telling.track, telling.track_group, _print_tracker_line) as children:
        with TerminalProgress(as_json, runs) as progress:
            finished = work(_combine_listeners(progress.handle_event, children, runs), stop)
        export.update_results_csv(finished.paths)
        if as_json:
            click.echo(finished.result.model_dump_json())
        else:
            print_run(read_run(finished.paths))
        told = None if telling.no_report else _write_report(finished.paths)
        if not as_json:
            click.echo(f"report: {_shorten_path(told)}" if told else "report: agent2rl report latest")
            click.echo(f"view:   {_format_view_command(runs)}")
            click.echo(f"ledger: {finished.ledger_head}")
    sys.exit(130 if finished.result.ending == "interrupted" else 0 if finished.result.ended_well else 1)


def _combine_listeners(notify: Notify, children: TrackerProcesses, runs: Path) -> Notify:
    """Progress hears of every event; trackers read the run directory, and need to know that it is there."""

    def told(event: TimelineEvent) -> None:
        notify(event)
        if run := get_started_run_id(event):
            children.start(RunPaths(runs / run))

    return told


def _print_tracker_line(line: str) -> None:
    click.echo(f"tracking with {line}", err=True)


def _write_report(paths: RunPaths) -> Path | None:
    """Where it is; a report that cannot be made costs the run nothing."""
    try:
        run_report.write_report(paths)
    except Exception as error:
        click.echo(f"warning: no report was made: {type(error).__name__}: {error}", err=True)
        click.echo("         The run's record is whole; `agent2rl report` tries again.", err=True)
        return None
    return paths.report_page


def _stop_on_signals(stop: threading.Event) -> None:
    """The first Ctrl-C ends the run in order; the second one ends it at once."""

    def handle(_: int, __: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("stopping: the agent is ended and the record closed (once more to abandon it)", err=True)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _format_view_command(runs: Path) -> str:
    """What shows the runs in a browser, as this program was called."""
    called = Path(sys.argv[0])
    hidden = called.name == "agent2rl" and shutil.which("agent2rl") is None
    program = _shorten_path(called.absolute()) if hidden else "agent2rl"
    return shlex.join([str(program), "view", str(_shorten_path(runs.absolute()))])


def _shorten_path(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


MODES = ["free", "sft-only", "rl-only", "multi"]
CONTINUES = 20
FOLDERS = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command("run")
@click.option(
    "--task",
    required=True,
    shell_complete=complete_names("tasks"),
    help="A task (agent2rl list tasks), or a folder's name below --tasks-dir.",
)
@click.option(
    "--agent",
    required=True,
    shell_complete=complete_names("agents"),
    help="An agent (agent2rl list agents), e.g. claude-code or script:train.py. One that is somebody else's "
    "program is installed the first time.",
)
@click.option(
    "--driver",
    metavar="NAME",
    help="The LLM that does the agent's thinking: claude-opus-4-6, gpt-5.4, gemini-2.5-flash, or MODEL@URL "
    "for any compatible endpoint. Its key is read from your environment and never enters the sandbox.",
)
@click.option(
    "--model",
    shell_complete=complete_names("models"),
    default="abacus",
    show_default=True,
    help="The base model: a shipped one (agent2rl list models), one of the hub (org/name, org/name@revision) "
    "or a directory.",
)
@click.option("--engine", help="What runs the model.  [default: what it asks for, or vllm on a GPU]")
@click.option("--sandbox", default="bubblewrap", show_default=True, help="How the agent is enclosed.")
@click.option(
    "--budget",
    type=DurationParam(),
    default="10m",
    show_default=True,
    help="The agent's time: 90s, 10m, 12h.",
)
@click.option(
    "--max-tokens", type=CountParam(), help="Tokens of the driver LLM, read and written: 500k, 20M."
)
@click.option("--max-usd", type=DollarsParam(0, min_open=True), help="What the driver LLM may cost.")
@click.option(
    "--continues",
    type=click.IntRange(0),
    help=f"How often an agent that ends with time left is told to go on.  [default: {CONTINUES}]",
)
@click.option(
    "--record-driver",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep every exchange with the driver LLM in this new file, without the key.",
)
@click.option(
    "--replay-driver",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Let such a file answer in the driver's place: offline, free and the same each time.",
)
@click.option("--max-submissions", type=click.IntRange(1), help="How often the agent may submit.")
@click.option(
    "--max-env-steps", type=click.IntRange(1), help="Steps that the agent may take in the task's world."
)
@click.option(
    "--mode", type=click.Choice(MODES), default="free", show_default=True, help="What training is allowed."
)
@click.option(
    "--protocol",
    type=click.Choice(["heldout", "paper"]),
    default="heldout",
    show_default=True,
    help="heldout: rank on a split never queried. paper: rank on the test set that answers submissions.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option(
    "--samples",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Answers to each question of an evaluation: several give pass@k and majority votes as well.",
)
@click.option(
    "--temperature",
    type=TemperatureParam(0),
    help="How freely evaluations sample.  [default: 0 for one sample, the task's own for several]",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file with your own words for the model: `chat`, `plain`.  [default: the task's]",
)
@search
@click.option(
    "--record-searches",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep every search and what it found in this file; what it holds is not searched again.",
)
@judge
@click.option(
    "--train-judge",
    metavar="NAME",
    help="Another judge, for the agent, at $JUDGE_URL.  [default: none]",
)
@click.option(
    "--train-judge-questions",
    type=click.IntRange(1),
    default=RunSpec.model_fields["train_judge_questions"].default,
    show_default=True,
    help="How many questions it answers.",
)
@click.option(
    "--no-expert", is_flag=True, help="Interactive tasks: withhold the expert and its demonstrations."
)
@click.option("--data-dir", type=FOLDERS, help="The task's official files, where the hub is out of reach.")
@click.option("--tasks-dir", type=FOLDERS, multiple=True, help="Look for task folders here too.")
@click.option("--agents-dir", type=FOLDERS, multiple=True, help="Look for agent folders here too.")
@click.option(
    "--max-memory", type=SizeParam(), help="Memory of the sandbox.  [default: 3/4 of the machine's]"
)
@click.option("--max-disk", type=SizeParam(), help="Disk of the sandbox.  [default: 3/4 of what is free]")
@click.option(
    "--max-processes", type=click.IntRange(8), help="Processes of the sandbox.  [default: at least 400]"
)
@click.option(
    "--grading-time",
    type=DurationParam(),
    default="1h",
    show_default=True,
    help="Limit of one grading, and of all gradings together that wait when the agent ends.",
)
@track
@track_group
@no_report
@runs_dir
@as_json
def run_command(runs_dir: Path | None, **options: Any) -> None:
    """Run an agent on a task and print the result.

    The agent works in a sandbox until it ends or its budget does. What it submits is graded on a feedback
    split; its best submission is graded once more on a held-out split, and that is the score.

    \b
    agent2rl run --task gsm8k-mini --agent script
    agent2rl run --task gsm8k-mini --agent script:train.py --budget 10m --seed 1
    agent2rl run --task gsm8k --data-dir DIR --agent nop
    agent2rl run --task gsm8k --agent claude-code --driver claude-opus-4-6 --model Qwen/Qwen2.5-7B-Instruct \\
        --budget 12h --max-usd 50

    Exit code: 0 where the run ended as it should, 1 where it did not, 2 for a wrong command line,
    130 where it was interrupted.
    """
    where = read_settings()
    runs = (runs_dir or where.runs).absolute()
    spec = make_run_spec(options, where)
    telling = RunOutputOptions(
        **{name: options[name] for name in ("as_json", "no_report", "track", "track_group")}
    )
    run_and_report(
        runs, telling, lambda notify, stop: start_run(spec, replace(where, runs=runs), notify, stop)
    )


def make_run_spec(options: dict[str, Any], where: Settings) -> RunSpec:
    """The run that the command line asks for."""
    model = options["model"]
    if options["samples"] > 1 and options["temperature"] == 0:
        raise UserError(
            "Several samples at temperature 0 are one sample several times.",
            "Leave out --samples, or give a --temperature above 0.",
        )
    return RunSpec(
        task=registry.resolve_folder_name(options["task"], (*options["tasks_dir"], *where.tasks)),
        agent=_resolve_agent_name(
            registry.resolve_folder_name(options["agent"], (*options["agents_dir"], *where.agents))
        ),
        driver=options["driver"],
        continues=CONTINUES if options["continues"] is None else options["continues"],
        record_driver=_resolve_path(options["record_driver"]),
        replay_driver=_resolve_path(options["replay_driver"]),
        model=pin_model_name(model),
        engine=options["engine"] or choose_default_engine(model, list_visible_gpus(where.gpus)),
        sandbox=options["sandbox"],
        mode=options["mode"],
        protocol=options["protocol"],
        budget=Budget(
            wall_seconds=options["budget"],
            submissions=options["max_submissions"],
            environment_steps=options["max_env_steps"],
            tokens=options["max_tokens"],
            usd=options["max_usd"],
        ),
        limits=_parse_limits(options),
        grading_seconds=options["grading_time"],
        seed=options["seed"],
        samples=options["samples"],
        temperature=options["temperature"],
        prompts=read_prompts(options["prompts"]) if options["prompts"] else None,
        search=resolve_name(options["search"]) if options["search"] else None,
        record_searches=_resolve_path(options["record_searches"]),
        judge=options["judge"],
        train_judge=options["train_judge"],
        train_judge_questions=options["train_judge_questions"],
        expert=not options["no_expert"],
        data_dir=_resolve_path(options["data_dir"]),
    )


def _resolve_path(path: Path | None) -> str | None:
    """So that the specification means the same from anywhere."""
    return str(path.resolve()) if path else None


def _parse_limits(options: dict[str, Any]) -> RequestedLimits | None:
    asked = RequestedLimits(
        memory_bytes=options["max_memory"],
        disk_bytes=options["max_disk"],
        processes=options["max_processes"],
    )
    return None if asked == RequestedLimits() else asked


def _resolve_agent_name(name: str) -> str:
    """A script by its whole path, so that the specification means the same from anywhere."""
    head, _, argument = name.partition(":")
    return f"script:{Path(argument).resolve()}" if head == "script" and argument else name


# agent2rl resume


@click.command("resume")
@click.argument("run", shell_complete=complete_runs)
@track
@track_group
@no_report
@runs_dir
@as_json
def resume_command(
    run: str,
    track: tuple[str, ...],
    track_group: str | None,
    no_report: bool,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Go on with a run whose harness, machine or job died.

    RUN is a run directory, a run's id (or the start of it) below the runs directory, or `latest`.

    The ledger says how far the run came, and nothing in it is done a second time. Submissions that were taken
    in and not graded are graded first. An agent that was at work is started again in its workspace as it was,
    for the time that was left when the harness died; it is told how things stand, and a program finds the
    variable RESUMED=1. Its processes are gone: a training goes on only from a checkpoint. Tokens, dollars,
    submissions and environment steps go on counting.

    Model and data must be those that the run began with. Keys are read from your environment, as for `run`.
    A run that is finished stays as it is.

    \b
    agent2rl resume latest
    agent2rl resume 20261116-101500 --json

    Exit code: as for `run`; 0 where there was nothing to do, 2 where the run cannot go on as things are,
    which leaves it as it was.
    """
    paths, where = resolve_run(run, runs_dir), read_settings()
    view = read_run(paths) if paths.result.exists() else None
    if view and view.result is not None:
        click.echo(f"{paths.run_id} is finished: there is nothing to resume.", err=True)
        click.echo(view.result.model_dump_json()) if as_json else print_run(view)
        return
    here = replace(where, runs=paths.root.parent)
    telling = RunOutputOptions(as_json, no_report, track, track_group)
    run_and_report(here.runs, telling, lambda notify, stop: resume_run(paths, here, notify, stop))
