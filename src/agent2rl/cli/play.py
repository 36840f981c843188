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
from agent2rl.cli.terminal_output import sanitize_lines
from agent2rl.play import terminal, web_app
from agent2rl.play.game import HumanGame, find_game_number
from agent2rl.run.settings import read_settings
from agent2rl.run.training_data import open_training_world

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
def play_command(
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
    where = read_settings()
    with suppress(KeyboardInterrupt):
        click.echo(f"loading {task}", err=True)
        with open_training_world(registry.resolve_folder_name(task, where.tasks), data_dir) as (found, world):
            number = find_game_number(world, episode)
            if web or (web is None and web_app.has_pages(world)):
                opens = not no_browser and (where.display or sys.platform == "darwin")
                web_app.serve_games(
                    world, found.id, number, port, _print_and_open_address if opens else _print_address
                )
            else:
                game = HumanGame(world, number)
                terminal.play_in_terminal(game, found.description, _read_typed_lines(game), _print_text)
                game.close()


def _print_address(address: str) -> None:
    click.echo(f"{address}\n(Ctrl-C to stop)")


def _print_and_open_address(address: str) -> None:
    _print_address(address)
    web_app.open_browser(address)


def _print_text(text: str, style: str) -> None:
    """What a world says is no markup, and must not steer the terminal."""
    Console(highlight=False, soft_wrap=True).print(Text(sanitize_lines(text), style))


def _read_typed_lines(game: HumanGame) -> Iterator[str]:
    """What a person types, with a history and completion where there are such; or what a pipe brings."""
    if not sys.stdin.isatty():
        for line in sys.stdin.buffer:
            said = line.decode("utf-8", "replace")
            _print_text(f"> {said.rstrip()}", "bold")
            yield said
        return
    with suppress(ImportError):
        readline = importlib.import_module("readline")
        readline.set_completer_delims("")
        readline.set_completer(lambda begun, n: [*terminal.complete_line(game, begun), None][n])
        readline.parse_and_bind("tab: complete")
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
