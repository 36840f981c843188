"""A grading child that shares its work with forked processes, in real sandboxes."""

import functools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import pytest

from agent2rl import registry
from agent2rl.core.errors import EngineFailure, GradingError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.records import Isolation, Limits
from agent2rl.core.sandbox import Command, Enclosure, Exit, Process, Sandbox
from agent2rl.core.task import Example
from agent2rl.engines.transformers import open_engine
from agent2rl.grading.grading_child import GradingChild, count_engine_processes
from agent2rl.run.assets import prepare_model_directory, write_split_file

TASK = "alfworld-mini"
GIB = 1 << 30
LIMITS = Limits(memory_bytes=32 * GIB, disk_bytes=GIB, processes=100)

several_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="there is one core")


@dataclass(frozen=True)
class WatchedSandbox:
    """A sandbox whose grading processes are shown to `look`, a few times a second."""

    sandbox: Sandbox
    look: Callable[[list[int]], None]

    def workspace(self, workspace: Path) -> PurePosixPath:
        return self.sandbox.workspace(workspace)

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        return self.sandbox.check(hidden)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        def look(members: Sequence[Process], _: int | None) -> None:
            self.look([member.pid for member in members if is_grading_process(member.pid)])

        return self.sandbox.run(command, replace(enclosure, process_observer=look), stop)


def is_grading_process(pid: int) -> bool:
    try:
        return b"agent2rl.grading.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def read_parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@functools.cache
def load_games() -> tuple[Example, ...]:
    return registry.find_task(TASK).load(None).feedback[:32]


@pytest.fixture(scope="module")
def seedling(cache: Path) -> Path:
    return prepare_model_directory("seedling", cache)


def make_child(sandbox: Sandbox, cache: Path) -> GradingChild:
    games = write_split_file(load_games(), cache / "tasks" / "some-games")
    settings = EvalSettings()
    # On a GPU a model has one process.
    return GradingChild(
        sandbox, TASK, "transformers", settings, {"feedback": games}, LIMITS, seconds=240, gpus=()
    )


def find_sandbox(name: str) -> Sandbox:
    sandbox = registry.find_sandbox(name)
    if [promise.name for promise in sandbox.check().promises] == ["the sandbox starts"]:
        pytest.skip(f"{name} cannot run here")
    return sandbox


@several_cores
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["bubblewrap", pytest.param("local", marks=pytest.mark.thorough)])
def test_a_small_model_is_graded_by_a_process_for_each_core_as_by_one(
    name: str, seedling: Path, cache: Path, tmp_path: Path
) -> None:
    seen: set[int] = set()
    child = make_child(WatchedSandbox(find_sandbox(name), seen.update), cache)
    graded = child.grade_model(seedling, "feedback", tmp_path / "log", tmp_path / "s", threading.Event())
    assert len(seen) == min(16, len(os.sched_getaffinity(0)))
    assert not any(map(is_grading_process, seen))
    with open_engine(seedling) as engine:
        alone = registry.find_task(TASK).evaluator.evaluate(engine, load_games(), EvalSettings())
    assert graded.results == alone.results


@pytest.mark.thorough
@several_cores
def test_a_process_that_is_killed_fails_the_grading(seedling: Path, cache: Path, tmp_path: Path) -> None:
    def kill_forked(pids: list[int]) -> None:
        forked = [pid for pid in pids if read_parent(pid) in pids]
        if forked:
            os.kill(forked[0], signal.SIGKILL)

    child = make_child(WatchedSandbox(find_sandbox("local"), kill_forked), cache)
    with pytest.raises(GradingError, match="A worker process has died"):
        child.grade_model(seedling, "feedback", tmp_path / "log", tmp_path / "s", threading.Event())


@several_cores
@pytest.mark.parametrize("name", ["bubblewrap", pytest.param("local", marks=pytest.mark.thorough)])
def test_a_stopped_grading_leaves_no_process_behind(
    name: str, seedling: Path, cache: Path, tmp_path: Path
) -> None:
    seen: set[int] = set()
    stop = threading.Event()

    def stop_once_forked(pids: list[int]) -> None:
        seen.update(pids)
        if len(pids) > 1:
            stop.set()

    child = make_child(WatchedSandbox(find_sandbox(name), stop_once_forked), cache)
    with pytest.raises(GradingError, match="was stopped"):
        child.grade_model(seedling, "feedback", tmp_path / "log", tmp_path / "s", stop)
    assert len(seen) > 1
    assert not any(map(is_grading_process, seen))


@pytest.mark.parametrize(
    ("limits", "processes"),
    [
        (Limits(memory_bytes=8 * GIB, disk_bytes=GIB, processes=400), 4),
        (Limits(memory_bytes=8 * GIB, disk_bytes=GIB, processes=7), 3),
        (Limits(memory_bytes=GIB, disk_bytes=GIB, processes=400), 1),
        (Limits(memory_bytes=GIB, disk_bytes=GIB, processes=1), 1),
    ],
)
def test_a_grading_starts_no_more_processes_than_fit_into_its_limits(limits: Limits, processes: int) -> None:
    assert count_engine_processes(limits) == processes


def test_the_message_of_an_engine_that_does_not_start_quotes_what_this_grading_logged(
    seedling: Path, cache: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("an example of an earlier grading\n")
    child = replace(
        make_child(find_sandbox("local"), cache),
        engine="tests.helpers.failing_engine:open_engine",
        python_path=(Path(__file__).parents[2],),
    )
    with pytest.raises(EngineFailure, match=r"^The engine does not start\.") as caught:
        child.grade_model(seedling, "feedback", log, tmp_path / "s", threading.Event())
    heading, *lines = caught.value.hint.splitlines()
    assert heading == "The last lines of the grading log:"
    assert lines[0] == "head size 8 is not supported"
    assert "RuntimeError: no attention backend" in lines
    assert "EngineFailure" not in caught.value.hint
