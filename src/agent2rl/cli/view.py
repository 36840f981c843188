"""agent2rl view"""

import secrets
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import click

from agent2rl import registry
from agent2rl.bundles.unpacking import is_bundle
from agent2rl.cli.leaderboard import list_task_traits
from agent2rl.cli.options import runs_dir, unpack_bundle
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.dashboard import server
from agent2rl.dashboard.server import is_loopback
from agent2rl.dashboard.state import Dashboard
from agent2rl.net.ports import LOOPBACK
from agent2rl.play.web_app import open_browser
from agent2rl.run.settings import read_settings


@click.command("view")
@click.argument("runs", type=click.Path(path_type=Path), required=False)
@click.option(
    "--host",
    default=LOOPBACK,
    show_default=True,
    help="The address to serve on. If it is not a loopback address, readers need the printed token.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port.  [default: a free one]")
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
@runs_dir
def view_command(runs: Path | None, host: str, port: int, no_browser: bool, runs_dir: Path | None) -> None:
    """Show the runs of a directory, or one bundle, in a browser, live while they run and after they end.

    The dashboard only reads run directories and never changes them. For a remote machine, forward a port with
    ssh -L 8000:127.0.0.1:8000 HOST, and run `agent2rl view --port 8000 --no-browser` there.

    \b
    agent2rl view
    agent2rl view /shared/runs --port 8000
    agent2rl view RUN.tar.zst
    """
    settings = read_settings()
    folder, cache = (runs or runs_dir or settings.runs).absolute(), settings.cache
    get_level = select_level_reader(folder, settings.runs)
    if is_bundle(str(folder)):
        folder = unpack_bundle(str(folder)).paths.root.parent
        cache = folder / ".cache"  # deleted with the folder
    if not folder.is_dir():
        raise UserError(
            f"{folder} is neither a directory nor a bundle.",
            "Pass the runs directory: agent2rl view RUNS.",
        )
    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    opens = not no_browser and (settings.display or sys.platform == "darwin")

    def announce(address: str) -> None:
        click.echo(f"{address}\n(Ctrl-C to stop)")
        if opens:
            open_browser(address)

    server.serve_dashboard(Dashboard(folder, cache, get_level, list_task_traits, token), host, port, announce)


def select_level_reader(folder: Path, own_runs: Path) -> Callable[[str], int | None]:
    """Return how to read a task's level: runs outside of the user's runs directory were made by anybody."""
    return get_task_level if folder.resolve() == own_runs.resolve() else get_listed_task_level


@cache
def get_task_level(task: str) -> int | None:
    try:
        return registry.find_task(task).level
    except (Agent2RLError, ImportError):
        return None


def get_listed_task_level(task: str) -> int | None:
    """Return the level of a task that anybody may have named: code elsewhere is not imported."""
    return None if ":" in task else get_task_level(task)
