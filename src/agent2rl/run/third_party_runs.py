"""Runs from other people: which of their settings are trusted, and where results are stored.

A specification names code, files and addresses. Of those in another person's record, only the names of
installed plugins and plain settings are used. The user names everything else again, or it is left out.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl import registry
from agent2rl.core.errors import UserError
from agent2rl.core.records import RunSpec
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.grading.verify import ALL_CHECKED, UncheckedFiles, find_additions_fault
from agent2rl.record.files import remove_tree
from agent2rl.record.ledger import read_ledger
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView
from agent2rl.record.untrusted_files import find_fault
from agent2rl.run.agent_python import find_agent_python
from agent2rl.run.assets import choose_default_engine, pin_model_name
from agent2rl.run.settings import Settings

LONGEST_SECONDS, LONGEST_GRADING_SECONDS = 30 * 86400.0, 86400.0
MOST_SAMPLES = 1000
"""As the command line of a run accepts."""


@dataclass(frozen=True)
class NamedInputs:
    """Code, files and addresses that the user names: those in a record from other people are not used."""

    task: str | None = None
    data_dir: Path | None = None
    model: str | None = None
    agent_python: Path | None = None
    judge: str | None = None
    train_judge: str | None = None
    search: str | None = None


@dataclass(frozen=True)
class ThirdPartyRun:
    """A run that somebody else recorded, unpacked into a temporary directory."""

    target: RunPaths
    """Where reproductions are stored: a folder with a copy of the run's ledger."""
    inputs: NamedInputs = NamedInputs()
    unchecked: UncheckedFiles = field(default=ALL_CHECKED)
    hidden: tuple[Path, ...] = ()
    """Files that no sandbox may show."""


def restrict_spec(spec: RunSpec, inputs: NamedInputs, settings: Settings) -> RunSpec:
    """Return another person's specification without names that could make us run, read or call anything."""
    task = _choose_task(spec, inputs, settings)
    is_shipped = spec.model in registry.list_names("models")
    default_engine = choose_default_engine(spec.model, ()) if is_shipped else None
    if spec.engine not in (default_engine, *registry.list_names("engines")):
        raise UserError(
            f"The run names the engine {spec.engine!r}, which is not one of the installed engines.",
            "Only runs with an installed engine can be reproduced.",
        )
    if inputs.model is None and not is_shipped:
        raise UserError(
            f"The run's base model {spec.model!r} does not ship with agent2rl.",
            "Name it here: --model DIRECTORY or --model org/name. Its hash must match the record.",
        )
    for name, recorded, option, replacement in (
        ("judge", spec.judge, "--judge", inputs.judge),
        ("training judge", spec.train_judge, "--train-judge", inputs.train_judge),
        ("search backend", spec.search, "--search", inputs.search),
    ):
        if recorded and not replacement:
            raise UserError(f"The run used the {name} {recorded!r}.", f"Name yours: {option} NAME.")
    if spec.samples > MOST_SAMPLES or not spec.budget.wall_seconds <= LONGEST_SECONDS:
        raise UserError(
            f"The run had {spec.budget.wall_seconds:g} s and {spec.samples} answers per example.",
            f"At most {LONGEST_SECONDS:g} s and {MOST_SAMPLES} answers are accepted.",
        )
    python = find_agent_python(inputs.agent_python) if inputs.agent_python else None
    changes: dict[str, object] = {
        "task": task,
        "model": pin_model_name(inputs.model or spec.model),
        "judge": inputs.judge if spec.judge else None,
        "train_judge": inputs.train_judge if spec.train_judge else None,
        "search": inputs.search if spec.search else None,
        "data_dir": str(inputs.data_dir.resolve()) if inputs.data_dir else None,
        "agent_python": str(python.prefix) if python else None,
        "agent_python_lock": python.lock.sha256 if python else None,
        "sandbox": AUTO_SANDBOX,
        "grading_seconds": min(spec.grading_seconds, LONGEST_GRADING_SECONDS),
    }
    left_out = ("record_searches", "record_driver", "replay_driver", "limits", "grading_gpus")
    return spec.model_copy(update={**changes, **dict.fromkeys(left_out), "siblings": ()})


def _choose_task(spec: RunSpec, inputs: NamedInputs, settings: Settings) -> str:
    if inputs.task is not None:
        return registry.resolve_task_name(inputs.task, settings.tasks, inputs.data_dir)
    if spec.task not in registry.list_names("tasks"):
        # The name could make us import any module, or run a folder beside the bundle.
        raise UserError(
            f"The run names the task {spec.task!r}, which is not one of the installed tasks.",
            f"Name the task here: --task {registry.TASK_FOLDER_KINDS[0]}:PATH or package.module:NAME.",
        )
    return spec.task


def find_recorded_workspace(view: RunView, path: str) -> str:
    """Return where the agent of this run saw its workspace. `path` leads to a model in it.

    Some sandboxes show the workspace at its path on the host, and this host has another one.
    """
    name = view.used_sandbox.partition(":")[0]
    if name not in registry.list_names("sandboxes"):
        raise UserError(
            f"The run names the sandbox {view.used_sandbox!r}, which is not one of the installed sandboxes.",
            "Only runs in an installed sandbox can be reproduced.",
        )
    workspace = view.paths.workspace
    root = str(registry.find_sandbox(name).workspace(workspace))
    match = re.match(rf"/.*/{re.escape(view.paths.run_id)}/{re.escape(workspace.name)}(?=/|$)", path)
    return match[0] if match and root == str(workspace.resolve()) else root


@contextmanager
def open_reproductions_folder(folder: Path, run: RunPaths) -> Iterator[RunPaths]:
    """Open the folder for results about a run that cannot be changed, such as one in a bundle.

    The folder starts with a copy of the run's ledger, and results are appended to it. A new folder is
    deleted again if nothing was added.
    """
    target = RunPaths(folder.absolute())
    is_new = not folder.exists() and not folder.is_symlink()
    try:
        if is_new:
            target.root.mkdir(mode=0o700)
            for source in (run.ledger, run.ledger_head):
                shutil.copyfile(source, target.root / source.name)
        _require_folder_of(target, run)
        yield target
    except OSError as error:
        raise UserError(f"Cannot write {folder}: {error.strerror or error}.", "Name a folder: -o.") from error
    finally:
        if is_new and not target.additions.exists():
            remove_tree(target.root)


def _require_folder_of(target: RunPaths, run: RunPaths) -> None:
    head = read_ledger(run.ledger, run.ledger_head).entries[-1].hash
    if not target.root.is_dir() or target.root.is_symlink() or not target.ledger.exists():
        raise UserError(
            f"{target.root} exists and is not a folder of reproductions.", "Name another one: -o."
        )
    entries = read_ledger(target.ledger, target.ledger_head).entries
    fault = find_fault(target) or find_additions_fault(target, head)
    if not entries or entries[-1].hash != head:
        fault = "belongs to another run"
    if fault:
        raise UserError(f"Nothing can be added to {target.root}: it {fault}.", "Name another folder: -o.")
