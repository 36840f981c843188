"""agent2rl check"""

import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from agent2rl import registry
from agent2rl.cli.options import agent_python, as_json, judge, sandbox, search
from agent2rl.run.grading_proxy_setup import GradingProxyOptions
from agent2rl.run.model_preflight import check_base_model
from agent2rl.run.preflight import (
    PreflightFinding,
    check_agent_python,
    check_machine,
    check_other_system,
    check_task,
)
from agent2rl.run.settings import read_settings

MARKS = {
    "ok": "[green]ok[/green]      ",
    "missing": "[yellow]missing[/yellow] ",
    "not kept": "[yellow]not kept[/yellow]",
    "broken": "[red]BROKEN[/red]  ",
}
DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command("check")
@click.argument("task", required=False)
@sandbox
@click.option("--data-dir", type=DIRECTORY, help="The directory with the task's official files.")
@click.option(
    "--tasks-dir", type=DIRECTORY, multiple=True, help="Also look for task folders here. Can be repeated."
)
@agent_python
@click.option("--model", help="Also check whether this machine can run with this base model.")
@search
@judge
@as_json
def check_command(
    task: str | None,
    sandbox: str,
    data_dir: Path | None,
    tasks_dir: tuple[Path, ...],
    agent_python: Path | None,
    model: str | None,
    search: str | None,
    judge: str | None,
    as_json: bool,
) -> None:
    """Check this machine, or a task.

    Without TASK, this tests every promise of the sandbox and looks for GPUs, API keys, disk space and data.
    The last line says which sandbox runs use here, what it does not promise, and what would get a better one.
    With --model, it also checks whether the sandbox can read the model, whether a submission of its size fits
    on the disk, and whether its weights fit into the GPU that grades.

    With TASK, it grades the task's gold answers and wrong answers as it grades submissions: gold answers
    must score 100 and wrong answers 0. --search also tries one search. With --judge, the judge grades the
    answers; a judge that compares two answers is asked 20 times whether an empty answer beats the reference.

    --agent-python also checks a Python environment for agents, and starts it in the sandbox.

    Runs need Linux. On other systems, this says what works there.

    \b
    agent2rl check
    agent2rl check gsm8k-mini
    agent2rl check --agent-python ~/envs/trl
    agent2rl check --model ./models/qwen-7b

    Exit code: 1 if something is broken, else 0. Missing optional parts are listed but are not an error.
    """
    where = read_settings()
    findings: Iterator[PreflightFinding]
    if (system := platform.system()) != "Linux":
        findings, agent_python, model = check_other_system(system, where), None, None
    elif task is None:
        checked_model = () if model is None else check_base_model(model, where, sandbox)
        findings = check_machine(where, sandbox, checked_model)
    else:
        name = registry.resolve_task_name(task, (*tasks_dir, *where.tasks), data_dir)
        findings = check_task(name, data_dir, where, sandbox, GradingProxyOptions(search, judge=judge))
    if agent_python:
        findings = chain([check_agent_python(agent_python, where, sandbox)], findings)
    if model is not None and task is not None:
        findings = chain(findings, check_base_model(model, where, sandbox))
    console = Console(highlight=False, soft_wrap=True)
    seen: list[PreflightFinding] = []
    for finding in findings:
        seen.append(finding)
        if not as_json:
            hint = f"  → {finding.hint}" if finding.hint else ""
            console.print(f"{MARKS[finding.state]}  {escape(f'{finding.name}: {finding.detail}{hint}')}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in seen]))
    sys.exit(1 if any(finding.state == "broken" for finding in seen) else 0)
