"""The commands `run` and `resume`: start or resume a run, show its progress, and write its report."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from agent2rl import registry
from agent2rl.cli.options import (
    CountParam,
    DollarsParam,
    DurationParam,
    ExpertParam,
    FiniteFloatParam,
    NetworkParam,
    ProtocolParam,
    SizeParam,
    TemperatureParam,
    agent_python,
    as_json,
    complete_names,
    complete_runs,
    judge,
    no_report,
    resolve_run,
    runs_dir,
    sandbox,
    search,
    track,
    track_group,
)
from agent2rl.cli.run_and_report import RunOutputOptions, run_and_report
from agent2rl.cli.run_defaults import announce_choices, choose_agent_and_model
from agent2rl.cli.terminal_output import print_run
from agent2rl.core.agent import SUBMITTING_AGENT
from agent2rl.core.errors import UserError
from agent2rl.core.records import Budget, Clock, KeptWeights, Mode, RequestedLimits, RunSpec
from agent2rl.environments.search.search_engines import resolve_name
from agent2rl.evaluators.task_data import read_prompts
from agent2rl.record.reader import read_run
from agent2rl.run.agent_network import choose_network_policy
from agent2rl.run.agent_python import find_agent_python
from agent2rl.run.assets import OWN_TRAINING, choose_default_engine, pin_model_name, require_panel_task
from agent2rl.run.execution import resume_run, start_run
from agent2rl.run.expert_help import choose_expert_help
from agent2rl.run.machine import list_visible_gpus
from agent2rl.run.settings import Settings, read_settings

logger = logging.getLogger(__name__)


# The command `run`

CONTINUES = 20
DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command("run")
@click.option(
    "--task",
    required=True,
    shell_complete=complete_names("tasks"),
    help="The task to train for (see: agent2rl list tasks), or the name of a folder in --tasks-dir.",
)
@click.option(
    "--agent",
    shell_complete=complete_names("agents"),
    help="The agent that does the training (see: agent2rl list agents), e.g. claude-code or script:train.py. "
    "Third-party agents are installed on first use.  [default: one without an LLM; it is printed]",
)
@click.option(
    "--driver",
    metavar="NAME",
    help="The LLM that drives the agent: claude-opus-4-6, gpt-5.4, gemini-2.5-flash, or MODEL@URL for any "
    "compatible endpoint. Its API key is read from your environment and never enters the sandbox.",
)
@click.option(
    "--model",
    shell_complete=complete_names("models"),
    default="abacus",
    show_default="abacus; without --agent, one that fits the task",
    help="The base model to train: a shipped model (see: agent2rl list models), a hub model (org/name or "
    "org/name@revision) or a directory.",
)
@click.option("--engine", help="The inference engine.  [default: the model's own, or vllm on a GPU]")
@sandbox
@click.option(
    "--budget",
    type=DurationParam(),
    default="10m",
    show_default=True,
    help="The agent's time budget: 90s, 10m, 12h.",
)
@click.option(
    "--clock",
    type=click.Choice(get_args(Clock)),
    default="all",
    show_default=True,
    help="What counts as the agent's time. all: wall time. training: wall time, except while a submission is "
    "frozen, queued, checked or graded. Wall time is then limited to twice the budget.",
)
@click.option(
    "--max-gpu-hours",
    type=FiniteFloatParam(0, min_open=True),
    help="Limit for the agent's GPU time: the number of its GPUs times its wall time.",
)
@click.option(
    "--max-tokens", type=CountParam(), help="Limit for the driver LLM's input and output tokens: 500k, 20M."
)
@click.option(
    "--max-usd", type=DollarsParam(0, min_open=True), help="Limit for the driver LLM's cost in US dollars."
)
@click.option(
    "--continues",
    type=click.IntRange(0),
    help="How often an agent that exits with time remaining is restarted and told to continue.  "
    f"[default: {CONTINUES}]",
)
@click.option(
    "--record-driver",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Record every exchange with the driver LLM in this new file, without the API key.",
)
@click.option(
    "--replay-driver",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Replay a file from --record-driver instead of calling the driver LLM: offline, free, repeatable.",
)
@click.option("--max-submissions", type=click.IntRange(1), help="Limit for the number of submissions.")
@click.option(
    "--max-env-steps", type=click.IntRange(1), help="Limit for the agent's steps in the task's environment."
)
@click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    default="free",
    show_default=True,
    help="Which training methods the agent may use. rl-oriented: RL, which may begin with an SFT warm-up; "
    "rl-only: RL without SFT; multi: several methods, compared.",
)
@click.option(
    "--protocol",
    type=ProtocolParam(),
    default="default",
    show_default=True,
    help="default: score on a split that the agent never gets feedback on. paper: the published prompts, "
    "limits and test set of the task; the test set also gives the feedback.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="The random seed."
)
@click.option(
    "--samples",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Samples per question in evaluations. Several samples also give pass@k and majority votes.",
)
@click.option(
    "--temperature",
    type=TemperatureParam(0),
    help="Sampling temperature of evaluations.  [default: 0 for one sample, the task's own for several]",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file with your own prompt templates: `chat`, `plain`.  [default: the task's]",
)
@search
@click.option(
    "--record-searches",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Record every search and its results in this file. Recorded searches are not repeated.",
)
@judge
@click.option(
    "--train-judge",
    metavar="NAME",
    help="A separate judge that the agent can use in training, at $JUDGE_URL.  [default: none]",
)
@click.option(
    "--train-judge-questions",
    type=click.IntRange(1),
    default=RunSpec.model_fields["train_judge_questions"].default,
    show_default=True,
    help="Limit for the number of questions to the training judge.",
)
@click.option(
    "--siblings",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    help="A fingerprint (see: agent2rl fingerprint) of a model that no submission may look like, such as the "
    "base model's Instruct version. Can be repeated. Those in the cache are always compared.",
)
@click.option(
    "--also",
    metavar="TASK,…",
    help="Regression panel: also grade the base model and the best submission on the held-out splits of "
    "these tasks, after the run. `train` is a sample of its own training examples. It changes no score.",
)
@click.option(
    "--expert",
    type=ExpertParam(),
    help="Expert help for the agent of an interactive task. full: an expert that plays any training game. "
    "N: that many of its games as files, and no expert. none: neither.  [default: the task's]",
)
@click.option(
    "--network",
    type=NetworkParam(),
    help="What the agent may reach, through a proxy that records every request. packages: the registries of "
    "PyPI, npm, conda and Debian. allow:HOST,…: these hosts. open: every public host, except model hubs, "
    "which must be named (open:HOST,…).  [default: the task's, which is none unless it says otherwise]",
)
@click.option(
    "--data-dir",
    type=DIRECTORY,
    help="The directory with the task's official files, if the hub cannot be reached.",
)
@click.option(
    "--tasks-dir", type=DIRECTORY, multiple=True, help="Also look for task folders here. Can be repeated."
)
@click.option(
    "--agents-dir", type=DIRECTORY, multiple=True, help="Also look for agent folders here. Can be repeated."
)
@agent_python
@click.option(
    "--max-memory", type=SizeParam(), help="Memory limit of the sandbox.  [default: 3/4 of the machine's]"
)
@click.option(
    "--max-disk", type=SizeParam(), help="Disk limit of the sandbox.  [default: 3/4 of what is free]"
)
@click.option(
    "--max-processes", type=click.IntRange(8), help="Process limit of the sandbox.  [default: at least 400]"
)
@click.option(
    "--grading-gpus",
    metavar="GPUS",
    help="GPUs kept for grading, which the agent does not see: names as in CUDA_VISIBLE_DEVICES (6,7), or "
    "last:1 for the last one of the run.  [default: the agent and grading share all GPUs]",
)
@click.option(
    "--grading-time",
    type=DurationParam(),
    default="1h",
    show_default=True,
    help="Time limit for one grading, and for all gradings together that are pending when the agent ends.",
)
@click.option(
    "--keep",
    type=click.Choice(get_args(KeptWeights)),
    default="best",
    show_default=True,
    help="Which submissions' weights the run directory keeps. best: those of the best so far. all: those of "
    "every submission. none: like best until the held-out grading, then none. Hashes, scores and answers are "
    "always kept.",
)
@track
@track_group
@no_report
@runs_dir
@as_json
def run_command(runs_dir: Path | None, **options: Any) -> None:
    """Run an agent on a task and print the result.

    The agent works in a sandbox until it exits or its time budget is used up. Each submission is graded on a
    feedback split. The best submission is then graded on a held-out split, which gives the score of the run.

    \b
    agent2rl run --task gsm8k-mini
    agent2rl run --task gsm8k-mini --agent script:train.py --budget 10m --seed 1
    agent2rl run --task gsm8k --data-dir DIR --agent nop
    agent2rl run --task gsm8k --agent claude-code --driver claude-opus-4-6 --model Qwen/Qwen2.5-7B-Instruct \\
        --budget 12h --max-usd 50

    Exit code: 0 if the run ended normally, 1 if it did not, 2 for a wrong command line, 130 if it was
    interrupted.
    """
    settings = read_settings()
    runs = (runs_dir or settings.runs).absolute()
    agent_given = options["agent"] is not None
    if not agent_given:
        source = click.get_current_context().get_parameter_source("model")
        options = choose_agent_and_model(options, model_given=source is not ParameterSource.DEFAULT)
    spec = make_run_spec(options, settings)
    if not agent_given:
        announce_choices(spec, quiet=options["as_json"])
    output = RunOutputOptions(
        **{name: options[name] for name in ("as_json", "no_report", "track", "track_group")}
    )
    run_and_report(
        runs, output, lambda notify, stop: start_run(spec, replace(settings, runs=runs), notify, stop)
    )


def make_run_spec(options: dict[str, Any], settings: Settings) -> RunSpec:
    """Build the run specification from the command line options."""
    model = options["model"]
    if options["samples"] > 1 and options["temperature"] == 0:
        raise UserError(
            "At temperature 0, all samples are identical.",
            "Leave out --samples, or give a --temperature above 0.",
        )
    task = registry.resolve_task_name(
        options["task"], (*options["tasks_dir"], *settings.tasks), options["data_dir"]
    )
    if options["prompts"] and options["protocol"] == "paper":
        raise UserError(
            "The paper's protocol has its own prompts.", "Leave out --prompts, or use --protocol default."
        )
    python = find_agent_python(options["agent_python"]) if options["agent_python"] else None
    return RunSpec(
        task=task,
        agent=_resolve_agent_name(
            registry.resolve_folder_name(options["agent"], (*options["agents_dir"], *settings.agents))
        ),
        driver=options["driver"],
        continues=CONTINUES if options["continues"] is None else options["continues"],
        record_driver=_resolve_path(options["record_driver"]),
        replay_driver=_resolve_path(options["replay_driver"]),
        model=pin_model_name(model),
        engine=options["engine"] or choose_default_engine(model, list_visible_gpus(settings.gpus)),
        sandbox=options["sandbox"],
        mode=options["mode"],
        protocol=options["protocol"],
        profile=registry.find_profile(task, options["protocol"]),
        budget=Budget(
            wall_seconds=options["budget"],
            submissions=options["max_submissions"],
            environment_steps=options["max_env_steps"],
            tokens=options["max_tokens"],
            usd=options["max_usd"],
            gpu_seconds=options["max_gpu_hours"] and 3600 * options["max_gpu_hours"],
        ),
        clock=options["clock"],
        limits=_parse_limits(options),
        grading_gpus=options["grading_gpus"],
        grading_seconds=options["grading_time"],
        keep=options["keep"],
        seed=options["seed"],
        samples=options["samples"],
        temperature=options["temperature"],
        prompts=read_prompts(options["prompts"]) if options["prompts"] else None,
        search=resolve_name(options["search"]) if options["search"] else None,
        record_searches=_resolve_path(options["record_searches"]),
        judge=options["judge"],
        train_judge=options["train_judge"],
        train_judge_questions=options["train_judge_questions"],
        also=_resolve_panel(options, task, settings),
        siblings=tuple(str(path.resolve()) for path in options["siblings"]),
        expert=choose_expert_help(registry.find_task(task), options["expert"]),
        network=choose_network_policy(registry.find_task(task), options["network"]),
        data_dir=_resolve_path(options["data_dir"]),
        agent_python=str(python.prefix) if python else None,
        agent_python_lock=python.lock.sha256 if python else None,
    )


def _resolve_panel(options: dict[str, Any], task: str, settings: Settings) -> tuple[str, ...]:
    names = [name for name in (options["also"] or "").split(",") if name]
    folders = (*options["tasks_dir"], *settings.tasks)
    panel = [name if name == OWN_TRAINING else registry.resolve_task_name(name, folders) for name in names]
    for name in panel:
        require_panel_task(name, task)
    return tuple(dict.fromkeys(panel))


def _resolve_path(path: Path | None) -> str | None:
    """Make a path absolute, so that the specification does not depend on the current directory."""
    return str(path.resolve()) if path else None


def _parse_limits(options: dict[str, Any]) -> RequestedLimits | None:
    limits = RequestedLimits(
        memory_bytes=options["max_memory"],
        disk_bytes=options["max_disk"],
        processes=options["max_processes"],
    )
    return None if limits == RequestedLimits() else limits


def _resolve_agent_name(name: str) -> str:
    """Make a path absolute, so that the specification does not depend on the current directory.

    The path of a folder may stand alone; a name without a slash is never a path.
    """
    head, _, argument = name.partition(":")
    if head in ("script", "folder", SUBMITTING_AGENT) and argument:
        return f"{head}:{Path(argument).resolve()}"
    return f"folder:{Path(name).resolve()}" if "/" in name and Path(name).is_dir() else name


# The command `resume`


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
    """Continue a run after its harness, machine or job died.

    RUN is a run directory, the id of a run in the runs directory (or the start of an id), or `latest`.

    The ledger records how far the run got, and nothing in it is done twice. Submissions that were accepted
    but not graded are graded first. If the agent was still working, it is started again in its unchanged
    workspace with the time that remained when the harness died. An LLM-driven agent is told the state of the
    run; a program finds the variable RESUMED=1. The agent's processes are gone, so training continues only
    from a checkpoint. Tokens, dollars, submissions and environment steps keep counting.

    The model and the data must be the ones that the run started with. API keys are read from your
    environment, as for `run`. A finished run is left as it is.

    \b
    agent2rl resume latest
    agent2rl resume 20261116-101500 --json

    Exit code: as for `run`. 0 if there was nothing to do; 2 if the run cannot continue now, which leaves it
    unchanged.
    """
    paths, settings = resolve_run(run, runs_dir), read_settings()
    view = read_run(paths) if paths.result.exists() else None
    if view and view.result is not None:
        click.echo(f"{paths.run_id} is already finished: there is nothing to resume.", err=True)
        click.echo(view.result.model_dump_json()) if as_json else print_run(view)
        return
    here = replace(settings, runs=paths.root.parent)
    output = RunOutputOptions(as_json, no_report, track, track_group)
    run_and_report(here.runs, output, lambda notify, stop: resume_run(paths, here, notify, stop))
