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
from agent2rl.run.task_data import open_training_world

DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command("play")
@click.argument("task")
@click.option("--episode", help="The training game to start with, by number or id.  [default: 1]")
@click.option(
    "--data-dir",
    type=DIRECTORY,
    help="The directory with the task's official files, if the hub cannot be reached.",
)
@click.option(
    "--web/--terminal",
    default=None,
    help="Play in a browser or in the terminal.  [default: web if the environment has pages]",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port for --web.  [default: a free one]"
)
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
def play_command(
    task: str, episode: str | None, data_dir: Path | None, web: bool | None, port: int, no_browser: bool
) -> None:
    """Play a task yourself, with the same actions, texts and rewards as a model.

    You can play training games only, never feedback or held-out games.

    \b
    agent2rl play alfworld-mini
    agent2rl play webshop-mini --episode 17
    printf 'search[steel cup]\\ncommands\\n' | agent2rl play webshop-mini --terminal

    In the terminal, every line is an action, or one of help, commands, expert, answer, again, next and quit.
    In the browser, use the links and buttons; the server accepts local connections only and runs until
    Ctrl-C.
    """
    settings = read_settings()
    with suppress(KeyboardInterrupt):
        click.echo(f"loading {task}", err=True)
        with open_training_world(registry.resolve_task_name(task, settings.tasks, data_dir), data_dir) as (
            loaded_task,
            world,
        ):
            number = find_game_number(world, episode)
            if web or (web is None and web_app.has_pages(world)):
                opens = not no_browser and (settings.display or sys.platform == "darwin")
                web_app.serve_games(
                    world, loaded_task.id, number, port, _print_and_open_address if opens else _print_address
                )
            else:
                game = HumanGame(world, number)
                terminal.play_in_terminal(game, loaded_task.description, _read_typed_lines(game), _print_text)
                game.close()


def _print_address(address: str) -> None:
    click.echo(f"{address}\n(Ctrl-C to stop)")


def _print_and_open_address(address: str) -> None:
    _print_address(address)
    web_app.open_browser(address)


def _print_text(text: str, style: str) -> None:
    """Print text of an environment without reading it as markup or letting it control the terminal."""
    Console(highlight=False, soft_wrap=True).print(Text(sanitize_lines(text), style))


def _read_typed_lines(game: HumanGame) -> Iterator[str]:
    """Yield the lines that a person types (with history and completion if available) or that a pipe sends."""
    if not sys.stdin.isatty():
        for line in sys.stdin.buffer:
            text = line.decode("utf-8", "replace")
            _print_text(f"> {text.rstrip()}", "bold")
            yield text
        return
    with suppress(ImportError):
        readline = importlib.import_module("readline")
        # No delimiters, so that the whole line is completed: actions have blanks and brackets in
        # them.
        readline.set_completer_delims("")
        readline.set_completer(lambda begun, n: [*terminal.complete_line(game, begun), None][n])
        readline.parse_and_bind("tab: complete")
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
