"""agent2rl run"""

from dataclasses import replace
from pathlib import Path
from typing import Any

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
    judge,
    no_report,
    runs_dir,
    search,
    track,
    track_group,
)
from agent2rl.cli.run_and_report import RunOutputOptions, run_and_report
from agent2rl.core.errors import UserError
from agent2rl.core.records import Budget, RequestedLimits, RunSpec
from agent2rl.environments.search.backend_names import resolve_name
from agent2rl.evaluators.prompts import read_prompts
from agent2rl.runner.assets import choose_default_engine, pin_model_name
from agent2rl.runner.machine import list_visible_gpus
from agent2rl.runner.run import run
from agent2rl.runner.settings import Settings, read_settings

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
    run_and_report(runs, telling, lambda notify, stop: run(spec, replace(where, runs=runs), notify, stop))


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
