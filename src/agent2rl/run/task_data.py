"""Load a task's data, with its data script if it has one, and write the training data for the agent.

The script is the user's code, so it runs in a sandbox, without a network. What it writes is kept in the cache
until a file of its folder changes.
"""

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import JsonValue

from agent2rl import registry
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command, Enclosure, Exit, Sandbox
from agent2rl.core.task import ChatEvaluator, DataFolder, DataScript, Evaluator, Example, Splits, Task
from agent2rl.evaluators.published.folder_files import copy_folder_files
from agent2rl.record.files import remove_tree
from agent2rl.run import machine
from agent2rl.run.directory_cache import build_once

SCRIPT_SECONDS = 600.0
LOG_CHARACTERS = 300
NO_NETWORK = (
    "It runs in a sandbox without a network. If it downloads, run it yourself and pass the directory that it "
    "fills with --data-dir, or put the files into data/ of the task folder."
)


def load_task_data(
    task: Task,
    data_dir: Path | None,
    cache: Path,
    sandbox: Sandbox,
    tell: Callable[[str], None] = lambda _: None,
) -> Splits:
    """Load the data from the user's directory, the result of the data script, or the task itself."""
    if data_dir is None and task.data_script is not None:
        data_dir = _run_script_once(task.data_script, task.id, cache, sandbox, tell)
    return task.load(data_dir)


def _run_script_once(
    script: DataScript, task: str, cache: Path, sandbox: Sandbox, tell: Callable[[str], None]
) -> Path:
    def write(directory: Path) -> None:
        tell(f"running {script.name} of {task} (once)")
        _run_script(script, directory, cache, sandbox)

    return build_once(cache / "tasks" / task / f"script-{script.sha256[:16]}", write)


def _run_script(script: DataScript, target: Path, cache: Path, sandbox: Sandbox) -> None:
    """Run the script in a sandbox and move what it wrote to the target."""
    here = Path(tempfile.mkdtemp(prefix=".script-", dir=target))  # removed with the target if this is killed
    try:
        work, scratch, log = here / "work", here / "scratch", here / "log"
        for directory in (work, scratch):
            directory.mkdir()
        copy_folder_files(script.folder, script.files, work / script.folder.name)
        enclosure = Enclosure(
            role="grader",
            workspace=work,
            scratch=scratch,
            log=log,
            wall_seconds=SCRIPT_SECONDS,
            limits=machine.resolve_limits(cache),
            grace_seconds=0,
        )
        ended = sandbox.run(
            Command(script.argv, {"PYTHONDONTWRITEBYTECODE": "1"}), enclosure, threading.Event()
        )
        _require_success(script, ended, log)
        _copy_plain_files(work / script.output, target, script)
    finally:
        remove_tree(here)


def _require_success(script: DataScript, ended: Exit, log: Path) -> None:
    if ended.reason == "exited" and ended.code == 0:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    last = next((line.strip()[:LOG_CHARACTERS] for line in reversed(lines) if line.strip()), "no output")
    what = f"exit code {ended.code}" if ended.reason == "exited" else ended.detail or ended.reason
    raise UserError(f"{script.folder / script.name} failed ({what}): {last}.", NO_NETWORK)


def _copy_plain_files(source: Path, target: Path, script: DataScript) -> None:
    """Copy what the script wrote. Nothing in it may lead elsewhere."""
    for directory, subdirectories, names in os.walk(source):
        for path in (Path(directory, name) for name in (*subdirectories, *names)):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UserError(
                    f"{script.name} wrote {path.relative_to(source)}, which is not a plain file.",
                    "Copy the data instead of linking to them.",
                )
    if not source.is_dir() or not any(source.iterdir()):
        raise UserError(f"{script.folder / script.name} wrote nothing to data/.", "Fix the script.")
    shutil.copytree(source, target, dirs_exist_ok=True)


# Write a task's training data as the directory that the agent sees.
#
# data/
#   train.jsonl     one {"id": …, "question": …, "answer": …, …} per line
#   demonstrations.jsonl   games that the expert won, if the run has a number of them
#   world.json      names the world to train in, if there is one
#   <name>/         the task's folders


def write_training_data(
    data: Path,
    task: Task,
    train: Sequence[Example],
    folders: Mapping[str, DataFolder],
    templated: bool,
    expert: bool = True,
) -> None:
    """Write the data into an empty directory. Folders that exist elsewhere are mounted later.

    Without `expert`, the world that is opened from the directory has none.
    """
    with (data / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(
            _format_json_line(_make_training_row(example, task.evaluator, templated)) for example in train
        )
    for name, folder in folders.items():
        if not isinstance(folder, Path):
            (data / name).mkdir(exist_ok=True)
            folder(data / name)
    if task.world:
        card: dict[str, JsonValue] = {"world": registry.resolve_world_address(task.world)}
        if not expert:
            card["expert"] = False
        (data / "world.json").write_text(json.dumps(card) + "\n", encoding="utf-8")


@contextmanager
def open_training_world(name: str, data_dir: Path | None) -> Iterator[tuple[Task, World]]:
    """Open a task's training games without a run. Evaluation examples are not touched."""
    task = registry.find_task(name)
    if task.world is None:
        raise UserError(
            f"The task {name!r} has no world to play in.",
            f"Tasks that have one: {', '.join(_list_playable_tasks())}.",
        )
    loaded = task.load(data_dir)
    with open_loaded_world(task, loaded) as world:
        yield task, world


@contextmanager
def open_loaded_world(task: Task, loaded: Splits) -> Iterator[World]:
    """Open the training games of loaded splits, with the expert if there is one."""
    assert task.world is not None
    with TemporaryDirectory(prefix="agent2rl-") as place:
        write_training_data(Path(place), task, loaded.train, loaded.folders, templated=True)
        for folder, source in loaded.folders.items():
            if isinstance(source, Path):
                (Path(place) / folder).symlink_to(source.resolve())
        yield registry.find_world(task.world)(Path(place))


def _list_playable_tasks() -> Iterator[str]:
    for name in registry.list_names("tasks"):
        with suppress(UserError, ImportError):  # needs an argument, or is not fully installed
            if registry.find_task(name).world:
                yield name


def _format_json_line(row: dict[str, JsonValue]) -> str:
    """Return a line of JSON, safe for programs that split lines at Unicode line separators."""
    text = json.dumps(row, ensure_ascii=False)
    for end in "\x85\u2028\u2029":
        text = text.replace(end, f"\\u{ord(end):04x}")
    return text + "\n"


def _make_training_row(example: Example, evaluator: Evaluator, templated: bool) -> dict[str, JsonValue]:
    """Return a training example; for single questions, `prompt` is the question as a list of messages."""
    row: dict[str, JsonValue] = {"id": example.id, "question": example.prompt, "answer": example.target}
    if isinstance(evaluator, ChatEvaluator):
        chat = evaluator.chat(example, templated)
        row["prompt"] = [{"role": message.role, "content": message.content} for message in chat]
    return {**row, **example.meta}
