"""Whole runs whose runs, cache and data lie inside the Python that every sandbox shows."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.helpers.run_launcher import RunLauncher

AGENT = """
def walk(place):
    return sorted(os.path.join(root, name) for root, _, names in os.walk(place) for name in names)
verdict = submit(trained("model"))["verdict"]
"""
SPY = """
import os
from dataclasses import dataclass, replace
from agent2rl.tasks.gsm8k.mini import TASK as MINI

@dataclass(frozen=True)
class Spy:
    inner: object
    version = "spy"
    def evaluate(self, engine, examples, settings):
        for root, _, names in os.walk({place!r}):
            print(*(f"SAW {{root}}/{{name}}" for name in names), sep="\\n", flush=True)
        return self.inner.evaluate(engine, examples, settings)

TASK = replace(MINI, id="spy", evaluator=Spy(MINI.evaluator))
"""


@pytest.fixture
def shared_place() -> Iterator[Path]:
    """A directory inside this Python's prefix that everybody may read."""
    if not os.access(sys.prefix, os.W_OK):
        pytest.skip("this Python's prefix cannot be written")
    with TemporaryDirectory(prefix="agent2rl-test-", dir=sys.prefix) as name:
        place = Path(name).resolve()
        place.chmod(0o755)
        yield place


def make_open(*directories: Path) -> None:
    """Directories that another user may enter: the harness makes private ones where there are none."""
    for directory in directories:
        for each in (*reversed(directory.parents), directory):
            if not each.exists():
                each.mkdir()
                each.chmod(0o755)


def write_task_folder(folder: Path) -> None:
    rows = [json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) for n in range(20)]
    (folder / "data").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: sums\n")
    (folder / "eval.py").write_text(
        "def evaluate(question, model_answer, reference_answer, **kwargs):\n"
        "    return float(reference_answer in model_answer)\n"
    )
    for name in ("train", "test"):
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


def test_runs_and_a_cache_inside_the_prefix_are_invisible_to_the_agent(
    shared_place: Path, tmp_path: Path
) -> None:
    runs, cache, home = shared_place / "runs", shared_place / "cache", tmp_path / "home"
    make_open(runs / "earlier", cache / "tasks" / "gsm8k-mini", home)
    (runs / "earlier" / "heldout.jsonl").write_text("an earlier run's held-out answers\n")
    (shared_place / "library.py").write_text("# a part of the environment\n")
    run = RunLauncher(runs, cache, home).run(
        AGENT + f"say(verdict=verdict, found=walk({str(shared_place)!r}))"
    )
    assert run.result.ending == "completed", run.log
    assert list((cache / "tasks").glob("*/*/examples.jsonl")), "the held-out split lies in the cache"
    assert run.said == {"verdict": "scored", "found": [str(shared_place / "library.py")]}
    assert run.result.contamination is not None
    assert run.result.contamination.done


@pytest.mark.thorough
def test_a_cache_that_a_link_leads_into_the_prefix_is_invisible_to_the_agent(
    shared_place: Path, tmp_path: Path
) -> None:
    cache, home = tmp_path / "cache", tmp_path / "home"
    make_open(shared_place / "real" / "gsm8k-mini", cache, home)
    (cache / "tasks").symlink_to(shared_place / "real")
    launcher = RunLauncher(tmp_path / "runs", cache, home)
    run = launcher.run(AGENT + f"say(verdict=verdict, found=walk({str(shared_place)!r}))")
    assert list((shared_place / "real").glob("*/*/examples.jsonl"))
    assert run.said == {"verdict": "scored", "found": []}, run.log


@pytest.mark.thorough
def test_task_folders_data_and_import_paths_inside_the_prefix_are_invisible_to_the_agent(
    shared_place: Path, launcher: RunLauncher
) -> None:
    tasks, data, code = shared_place / "tasks", shared_place / "data", shared_place / "code"
    write_task_folder(tasks / "sums")
    write_task_folder(tasks / "other")
    make_open(data, code)
    for name in ("train", "test"):
        (data / f"{name}.jsonl").write_bytes((tasks / "sums" / "data" / f"{name}.jsonl").read_bytes())
    (code / "secret_task.py").write_text("ANSWERS = [1, 2, 3]\n")
    run = launcher.run(
        AGENT + f"say(verdict=verdict, found=walk({str(shared_place)!r}))",
        *("--task", "sums", "--data-dir", str(data)),
        AGENT2RL_TASKS=str(tasks),
        PYTHONPATH=str(code),
    )
    assert run.said == {"verdict": "scored", "found": []}, run.log


def test_a_grading_sees_its_own_split_alone_wherever_the_cache_lies(tmp_path: Path) -> None:
    """PYTHONPATH=. with ./runs and ./cache in it: a grading needs the one and must not see the others."""
    home = tmp_path / "home"
    runs, cache = home / "runs", home / "cache"
    make_open(runs / "earlier", cache / "tasks" / "spy")
    (runs / "earlier" / "heldout.jsonl").write_text("an earlier run's held-out answers\n")
    (home / "spying.py").write_text(SPY.format(place=str(home)))
    launcher = RunLauncher(runs, cache, home)
    run = launcher.run(AGENT + "say(verdict=verdict)", "--task", "spying:TASK", PYTHONPATH=str(home))
    assert run.said == {"verdict": "scored"}, run.log
    assert run.result.contamination is not None
    assert run.result.contamination.done, run.result.contamination.reason
    log = run.paths.submission_paths(1).log.read_text()
    saw = {line.removeprefix("SAW ") for line in log.splitlines() if line.startswith("SAW ")}
    assert str(home / "spying.py") in saw
    assert [path for path in saw if path.startswith((str(runs), str(cache)))] == []


@pytest.mark.thorough
def test_temporary_files_inside_the_prefix_are_invisible_to_the_agent(
    shared_place: Path, launcher: RunLauncher
) -> None:
    (shared_place / "answers").write_text("of another command\n")
    look = f"say(started=True, found=walk({str(shared_place)!r}))"
    run = launcher.run(AGENT + look, TMPDIR=str(shared_place))
    assert run.said == {"started": True, "found": []}, run.result.reason


def test_a_recording_inside_the_prefix_is_another_file_and_empty_for_the_agent(
    shared_place: Path, launcher: RunLauncher
) -> None:
    tape = shared_place / "tape.jsonl"
    run = launcher.run(
        f"status = os.stat({str(tape)!r}); say(inode=status.st_ino, size=status.st_size)",
        *("--driver", "some-model@http://127.0.0.1:9/v1", "--record-driver", str(tape)),
    )
    assert run.said["size"] == 0, run.log
    assert run.said["inode"] != tape.stat().st_ino


def test_a_cache_that_is_the_prefix_itself_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    run = RunLauncher(tmp_path / "runs", Path(sys.prefix), home).run("say(started=True)")
    assert run.code != 0
    assert run.said == {}
    assert "AGENT2RL_CACHE" in (run.result.reason or "")
