"""What the tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers.run_launcher import RunLauncher

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch: test processes share the cores

settings.register_profile("agent2rl", database=None, deadline=None)
settings.load_profile("agent2rl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with whole runs first, so that at the end no process is alone with a long one."""
    long = {item.path for item in items if {"bench", "shared_bench"} & {*getattr(item, "fixturenames", ())}}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real task data beside the checkout, or in AGENT2RL_SHARED_DATA; tests that need it skip without."""
    named = os.environ.get("AGENT2RL_SHARED_DATA")
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no official task data here: name it in AGENT2RL_SHARED_DATA")
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared models, data and baselines, shared by the runs of a test process."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> RunLauncher:
    """A place for whole runs that several tests look at."""
    place = tmp_path_factory.mktemp("bench")
    home = place / "home"
    home.mkdir()
    return RunLauncher(place / "runs", cache, home)


@pytest.fixture
def bench(tmp_path: Path, cache: Path) -> RunLauncher:
    """A place for whole runs."""
    home = tmp_path / "home"
    home.mkdir()
    return RunLauncher(tmp_path / "runs", cache, home)
