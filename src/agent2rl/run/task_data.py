"""Load a task's data, and run the task's data script for them if it has one.

The script is the user's code, so it runs in a sandbox, without a network. What it writes is kept in the cache
until a file of its folder changes.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command, Enclosure, Exit, Sandbox
from agent2rl.core.task import DataScript, Splits, Task
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
                    f"{script.name} wrote {path.relative_to(source)}, which is no plain file.",
                    "Copy the data instead of linking to them.",
                )
    if not source.is_dir() or not any(source.iterdir()):
        raise UserError(f"{script.folder / script.name} wrote nothing to data/.", "Fix the script.")
    shutil.copytree(source, target, dirs_exist_ok=True)
