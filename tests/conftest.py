"""What the tests share."""

import gc
import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.run_launcher import RunLauncher

# Before torch and numpy: test processes share the cores, on which threads would wait for each other.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# They show the same on every machine: a GPU counts, trains and forks differently.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# What the tests import stays until the end. To look for garbage among it takes a quarter of the time of
# importing it, and 0.4 s each time afterwards.
gc.disable()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script. Tests of Ctrl-C would wait for programs that ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "agent2rl", database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("agent2rl")


SLOW_FOLDERS = {"agents", "campaign", "dashboard", "docs", "models", "sandboxes", "training", "whole_runs"}
SLOW_FILES = {
    "test_agent_install.py",
    "test_agent_timeline.py",
    "test_alfworld.py",
    "test_audit.py",
    "test_campaign_reports.py",
    "test_code_tests.py",
    "test_command_line.py",
    "test_contaminated_runs.py",
    "test_contamination.py",
    "test_deepsearchqa_mini.py",
    "test_deepsearchqa_paper.py",
    "test_episode_replay.py",
    "test_hostile_bundles.py",
    "test_humaneval.py",
    "test_inspect_log.py",
    "test_killed_cache_writers.py",
    "test_other_systems.py",
    "test_page.py",
    "test_pairwise.py",
    "test_paper_report.py",
    "test_private_places.py",
    "test_real_runs.py",
    "test_search_live.py",
    "test_site.py",
}
SLOW_FIXTURES = {"launcher", "shared_launcher", "cache", "cell"}
SLOW_IMPORTS = re.compile(
    r"^(?:import|from) (?:torch|transformers|trl|playwright|safetensors\.torch"
    r"|agent2rl\.(?:training|engines\.transformers)"
    r"|tests\.helpers\.(?:browser|model_families|search_models|stairs_environment|tiny_models|vllm_server))\b",
    re.MULTILINE,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="leave out whole runs, sandboxes, browsers and what loads torch"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --quick, do not even import what takes long to load."""
    if not config.getoption("--quick"):
        return None
    if collection_path.name in SLOW_FOLDERS | SLOW_FILES:
        return True
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and SLOW_IMPORTS.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put files with whole runs first, so that no process ends alone with a long one."""

    def uses(item: pytest.Item, fixtures: set[str]) -> bool:
        return bool(fixtures & {*getattr(item, "fixturenames", ())})

    if config.getoption("--quick"):
        items[:] = [item for item in items if not uses(item, SLOW_FIXTURES)]
    whole_runs = {item.path for item in items if uses(item, {"launcher", "shared_launcher"})}
    items.sort(key=lambda item: item.path not in whole_runs)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


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
    """Prepared models, data and baselines, shared by the runs of all test processes."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-cache"
    cache.mkdir(exist_ok=True)
    return cache


@pytest.fixture(scope="module")
def shared_launcher(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> RunLauncher:
    """A place for whole runs that several tests look at."""
    place = tmp_path_factory.mktemp("launcher")
    home = place / "home"
    home.mkdir()
    return RunLauncher(place / "runs", cache, home)


@pytest.fixture
def launcher(tmp_path: Path, cache: Path) -> RunLauncher:
    """A place for whole runs."""
    home = tmp_path / "home"
    home.mkdir()
    return RunLauncher(tmp_path / "runs", cache, home)
