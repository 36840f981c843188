"""agent2rl init"""

from pathlib import Path

import click

from agent2rl.core.errors import UserError

SOURCE = Path(__file__).with_name("starting")
PARTS = {"campaign": "campaign.toml", "task": "tasks", "agent": "agents"}
NEXT = {
    "campaign": "agent2rl campaign plan campaign.toml",
    "task": "agent2rl check shout --tasks-dir tasks",
    "agent": "agent2rl run --task gsm8k-mini --agent beginner --agents-dir agents --budget 1m",
}


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option(
    "--only", type=click.Choice(list(PARTS)), multiple=True, help="Only this.  [default: all three]"
)
def init_command(folder: Path, only: tuple[str, ...]) -> None:
    """Write a commented campaign, a task and an agent to begin with, into FOLDER (here).

    They work as they are: plan the campaign, check the task, run the agent, then make them yours. Nothing
    that is there already is touched.

    \b
    agent2rl init my-experiments
    agent2rl init --only task
    """
    wanted = [part for part in PARTS if not only or part in only]
    files = [path for part in wanted for path in _list_files(SOURCE / PARTS[part])]
    targets = {path: folder / path.relative_to(SOURCE) for path in files}
    if there := [target for target in targets.values() if target.exists() or target.is_symlink()]:
        raise UserError(f"{there[0]} is there already.", "Name another folder, or move it away.")
    try:
        for path, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            target.chmod(0o755 if path.suffix == ".sh" else 0o644)
            click.echo(f"  {target}")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}.", "Name another folder.") from error
    click.echo("then:" if folder == Path() else f"then, in {folder}:")
    for part in wanted:
        click.echo(f"  {NEXT[part]}")


def _list_files(path: Path) -> list[Path]:
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [each for each in found if each.is_file() and "__pycache__" not in each.parts]
