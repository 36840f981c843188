"""One real run, and a dashboard over a directory with runs of every kind made of it."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from agent2rl.analysis.campaigns.route_shares import TaskTraits
from agent2rl.cli.view import get_task_level
from agent2rl.dashboard.server import create_app
from agent2rl.dashboard.state import Dashboard
from agent2rl.record.paths import RunPaths
from agent2rl.record.run_lock import RunLock
from tests.dashboard import example_runs
from tests.helpers.browser import launch_chromium
from tests.helpers.http_server import serve_app
from tests.helpers.run_launcher import RunLauncher


@dataclass(frozen=True)
class DashboardServer:
    url: str
    runs: Path
    cache: Path
    dashboard: Dashboard


@contextmanager
def serve_dashboard(runs: Path, cache: Path, token: str = "") -> Iterator[DashboardServer]:
    """A dashboard over these runs, on a port of its own."""

    def traits() -> list[TaskTraits]:
        return []

    with closing(Dashboard(runs, cache, get_task_level, traits, token)) as dashboard:
        dashboard.index.refresh()
        dashboard.start()
        with serve_app(create_app(dashboard)) as url:
            yield DashboardServer(url, runs, cache, dashboard)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> RunPaths:
    place = tmp_path_factory.mktemp("dashboard")
    home = place / "home"
    home.mkdir()
    run = RunLauncher(place / "runs", cache, home).run(example_runs.AGENT_CODE)
    assert run.code == 0, run.errors
    return run.paths


@pytest.fixture(scope="session")
def board(finished: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    """Over runs of every kind."""
    runs = tmp_path_factory.mktemp("kinds")
    laid = {name: example_runs.copy_run_as(finished, runs, name) for name in example_runs.RUN_KINDS}
    with ExitStack() as stack:
        for name in (example_runs.RUNNING, example_runs.JUST_STARTED):
            stack.enter_context(RunLock(laid[name].lock))
        yield stack.enter_context(serve_dashboard(runs, tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")  # no longer: whoever has one cannot start another, or a loop of asyncio's
def browser() -> Iterator[Browser]:
    with launch_chromium() as started:
        yield started
