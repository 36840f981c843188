"""agent2rl play"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from agent2rl import registry
from agent2rl.cli.print import lines
from agent2rl.play import pages, server, terminal
from agent2rl.play.game import Game, find
from agent2rl.runner.data import training_world
from agent2rl.runner.settings import settings

DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command("play")
@click.argument("task")
@click.option("--episode", help="The training game to begin with, by number or id.  [default: 1]")
@click.option("--data-dir", type=DIRECTORY, help="The task's official files, where the hub is out of reach.")
@click.option(
    "--web/--terminal", default=None, help="Where to play.  [default: web where the world has pages]"
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="For --web.  [default: a free one]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def command(
    task: str, episode: str | None, data_dir: Path | None, web: bool | None, port: int, no_browser: bool
) -> None:
    """Play a task yourself, with a model's actions, texts and rewards.

    Training games only: feedback and held-out games are never played.

    \b
    agent2rl play alfworld-mini
    agent2rl play webshop-mini --episode 17
    printf 'search[steel cup]\\ncommands\\n' | agent2rl play webshop-mini --terminal

    In the terminal every line is an action, or help, commands, expert, answer, again, next or quit. In the
    browser it is links and buttons; the server answers this computer alone, until Ctrl-C.
    """
    where = settings()
    with suppress(KeyboardInterrupt):
        click.echo(f"loading {task}", err=True)
        with training_world(registry.in_folders(task, where.tasks), data_dir) as (found, world):
            number = find(world, episode)
            if web or (web is None and pages.has_pages(world)):
                opens = not no_browser and (where.display or sys.platform == "darwin")
                server.serve(world, found.id, number, port, _show if opens else _address)
            else:
                game = Game(world, number)
                terminal.play(game, found.description, _typed(game), _tell)
                game.close()


def _address(address: str) -> None:
    click.echo(f"{address}\n(Ctrl-C to stop)")


def _show(address: str) -> None:
    _address(address)
    server.browse(address)


def _tell(text: str, style: str) -> None:
    """What a world says is no markup, and must not steer the terminal."""
    Console(highlight=False, soft_wrap=True).print(Text(lines(text), style))


def _typed(game: Game) -> Iterator[str]:
    """What a person types, with a history and completion where there are such; or what a pipe brings."""
    if not sys.stdin.isatty():
        for line in sys.stdin.buffer:
            said = line.decode("utf-8", "replace")
            _tell(f"> {said.rstrip()}", "bold")
            yield said
        return
    with suppress(ImportError):
        readline = importlib.import_module("readline")
        readline.set_completer_delims("")
        readline.set_completer(lambda begun, n: [*terminal.completions(game, begun), None][n])
        readline.parse_and_bind("tab: complete")
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
