"""agent2rl check"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from agent2rl import registry
from agent2rl.cli.options import as_json, judge, search
from agent2rl.run.grading_proxy_setup import GradingProxyOptions
from agent2rl.run.preflight import PreflightFinding, check_machine, check_task
from agent2rl.run.settings import read_settings

MARKS = {
    "ok": "[green]ok[/green]     ",
    "missing": "[yellow]missing[/yellow]",
    "broken": "[red]BROKEN[/red] ",
}
DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command("check")
@click.argument("task", required=False)
@click.option("--sandbox", default="bubblewrap", show_default=True, help="The sandbox to try.")
@click.option("--data-dir", type=DIRECTORY, help="The task's official files.")
@click.option("--tasks-dir", type=DIRECTORY, multiple=True, help="Look for task folders here too.")
@search
@judge
@as_json
def check_command(
    task: str | None,
    sandbox: str,
    data_dir: Path | None,
    tasks_dir: tuple[Path, ...],
    search: str | None,
    judge: str | None,
    as_json: bool,
) -> None:
    """Check this machine, or a task.

    Without TASK: tries every promise of the sandbox for real, and looks for GPUs, keys, disk and data.
    With TASK: gold answers must score 100 and wrong ones 0, graded as submissions are. With --search, a
    search is tried. With --judge, it is the judge who marks them; one that compares two answers is asked
    20 times whether no answer at all is better than the reference's.

    Exit code 1 where something is broken; what is only missing is said and left.
    """
    where = read_settings()
    if task is None:
        findings = check_machine(where, sandbox)
    else:
        name = registry.resolve_folder_name(task, (*tasks_dir, *where.tasks))
        findings = check_task(name, data_dir, where, sandbox, GradingProxyOptions(search, judge=judge))
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
