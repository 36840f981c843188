"""The command `import`, which runs a task of another framework here."""

from pathlib import Path

import click

from agent2rl import registry
from agent2rl.cli.run import run_command
from agent2rl.interop.harbor_task import read_grading


@click.group("import")
def import_command() -> None:
    """Run a task of another framework here.

    \b
    agent2rl import harbor gsm8k-mini --agent claude-code --driver claude-opus-4-6
    """


@import_command.command(
    "harbor", context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION OF RUN]...")
def import_harbor(folder: Path, run_options: tuple[str, ...]) -> None:
    """Run an agent on a Harbor task in agent2rl's own sandbox, without containers.

    FOLDER is a task that `agent2rl export harbor` wrote. Task, base model, engine, mode, expert help, seed
    and budget are those of the task; an option of `run` after FOLDER takes precedence. Here the agent also
    has the grading API, so it gets feedback, which it does not in Harbor. Other Harbor tasks are refused.

    \b
    agent2rl import harbor gsm8k-mini
    agent2rl import harbor gsm8k-mini --agent script:train.py --budget 5m
    """
    run_command.main(
        [*_make_run_arguments(folder.resolve()), *run_options], "agent2rl run", standalone_mode=False
    )


def _make_run_arguments(folder: Path) -> list[str]:
    grading = read_grading(folder)
    task = f"{grading.task}:{folder / 'tests' / 'task'}" if grading.is_folder else grading.task
    arguments = [
        *("--task", task, "--model", grading.model, "--engine", grading.engine),
        *("--mode", grading.mode, "--seed", str(grading.seed)),
        *("--budget", f"{grading.wall_seconds:g}s", "--grading-time", f"{grading.grading_seconds:g}s"),
    ]
    if registry.find_task(task).withhold is not None:
        arguments += ["--expert", str(grading.expert)]
    if grading.has_data:
        arguments += ["--data-dir", str(folder / "tests" / "data")]
    return arguments
