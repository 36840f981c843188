"""A process that is killed while it fills a cache leaves nothing that a later one uses or trips over.

Each writer is killed at every one of its file operations in turn: a forked process counts them by Python's
audit events and sends itself SIGKILL at the n-th one. Then the same call must work.
"""

import os
import signal
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent2rl.core.agent import AgentPackage
from agent2rl.core.grading_records import EvalResult, ExampleResult
from agent2rl.dashboard.workers import PageCache
from agent2rl.evaluators import task_data
from agent2rl.grading.baseline import BaselineCache, Measurement
from agent2rl.grading.file_hashes import FileHashCache
from agent2rl.record.files import sha256_file
from agent2rl.run import agent_install
from agent2rl.run.agent_install import find_installed, install_agent_package
from agent2rl.run.assets import prepare_model_directory
from agent2rl.run.directory_cache import build_once, store_by_content, write_if_changed

WRITING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod", "shutil.rmtree", "open"}
MOST_OPERATIONS = 200
RESULTS = EvalResult(results=(ExampleResult(id="1", output="4", score=1.0),))
CONTENT = b"w" * 100_000


def fill(directory: Path) -> None:
    (directory / "config").write_text("c")
    (directory / "part").mkdir()
    (directory / "part" / "weights").write_bytes(CONTENT)


def is_filled(directory: Path) -> bool:
    return (directory / "config").read_text() == "c" and (
        directory / "part" / "weights"
    ).read_bytes() == CONTENT


def build(place: Path) -> bool:
    return is_filled(build_once(place / "models" / "m-1", fill))


def rewrite(place: Path) -> bool:
    return is_filled(write_if_changed(place / "models" / "m", fill))


def store(place: Path) -> bool:
    return is_filled(store_by_content(place / "beside", "shop", fill)[0])


def ship(place: Path) -> bool:
    return (prepare_model_directory("seedling", place) / "config.json").is_file()


def keep_baseline(place: Path) -> bool:
    cache = BaselineCache(place / "baselines")
    if cache.load("name") is None:
        cache.store("name", RESULTS, Measurement(run_id="run", at=1.0))
    entry = cache.load("name")
    return entry is not None and entry.results == RESULTS


def keep_hash(place: Path) -> bool:
    file = place / "large"
    if not file.exists():
        file.write_bytes(b"x" * (2 << 20))
    return FileHashCache(place / "hashes", settled_seconds=-60).hash_file(file) == sha256_file(file)


def keep_page(place: Path) -> bool:
    cache = PageCache(place / "made")
    if cache.get("page") is None:
        cache.put("page", "text" * 1000)
    return cache.get("page") == "text" * 1000


def write_program(_: AgentPackage, prefix: Path, __: object) -> None:
    (prefix / "bin").mkdir()
    program = prefix / "bin" / "tool"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)


def install(place: Path) -> bool:
    package = AgentPackage("pypi", "tool", "1", "tool")
    prefix = install_agent_package("tool", package, place, lambda _: None)
    return find_installed("tool", package, place) == prefix and (prefix / "bin" / "tool").is_file()


def write_archive(_: str, target: Path) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("games/a/game.json", "{}")


def unpack(place: Path) -> bool:
    folder = task_data.fetch_archive("https://example.org/x.zip", place / "home", "games", "*/game.json")
    return (folder / "a" / "game.json").read_text() == "{}"


WRITERS = [build, rewrite, store, ship, keep_baseline, keep_hash, keep_page, install, unpack]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_a_writer_killed_at_any_file_operation_is_repeated_without_harm(
    writer: Callable[[Path], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_install, "install_pypi_package", write_program)
    monkeypatch.setattr(task_data, "_download_archive", write_archive)
    for count in range(1, MOST_OPERATIONS):
        place = tmp_path / str(count)
        place.mkdir()
        was_killed = call_and_kill(writer, place, count)
        assert writer(place), f"killed at operation {count}"
        if not was_killed:
            break
    assert 2 < count < MOST_OPERATIONS


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "m-1"
    for number, name in enumerate((".preparing-m-1-abc_1234", ".preparing-m-1-fp16-abc_1234")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{number}.safetensors").write_bytes(CONTENT)
    build_once(target, fill)
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".preparing"))
    assert left == [".preparing-m-1-fp16-abc_1234"], "another model's is not touched"
    write_if_changed(tmp_path / "m-1-fp16", fill)
    assert (tmp_path / left[0]).exists(), "without a lock it may belong to a process that is at work"
    os.utime(tmp_path / left[0], (time.time() - 2 * 86400,) * 2)
    write_if_changed(tmp_path / "m-1-fp16", fill)
    assert not (tmp_path / left[0]).exists()


def call_and_kill(writer: Callable[[Path], bool], place: Path, count: int) -> bool:
    """Call the writer in a forked process that kills itself at its n-th file operation."""
    child = os.fork()
    if child == 0:
        done = 0

        def kill_at(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal done
            is_read = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE)
            if event in WRITING and not is_read:
                done += 1
                if done == count:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_at)
        try:
            writer(place)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
