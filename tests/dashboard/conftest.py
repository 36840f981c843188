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
from tests.browsers import chromium
from tests.dashboard import kinds
from tests.loopback import serving
from tests.runs import Bench


@dataclass(frozen=True)
class Served:
    url: str
    runs: Path
    cache: Path
    dashboard: Dashboard


@contextmanager
def served(runs: Path, cache: Path, token: str = "") -> Iterator[Served]:
    """A dashboard over these runs, on a port of its own."""

    def traits() -> list[TaskTraits]:
        return []

    with closing(Dashboard(runs, cache, get_task_level, traits, token)) as dashboard:
        dashboard.index.refresh()
        dashboard.start()
        with serving(create_app(dashboard)) as url:
            yield Served(url, runs, cache, dashboard)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> RunPaths:
    place = tmp_path_factory.mktemp("dashboard")
    home = place / "home"
    home.mkdir()
    run = Bench(place / "runs", cache, home).run(kinds.CODE)
    assert run.code == 0, run.errors
    return run.paths


@pytest.fixture(scope="session")
def board(finished: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Over runs of every kind."""
    runs = tmp_path_factory.mktemp("kinds")
    laid = {name: kinds.lay(finished, runs, name) for name in kinds.KINDS}
    with ExitStack() as stack:
        for name in (kinds.GOING, kinds.YOUNG):
            stack.enter_context(RunLock(laid[name].lock))
        yield stack.enter_context(served(runs, tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")  # no longer: whoever has one cannot start another, or a loop of asyncio's
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started
