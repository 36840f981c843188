"""Write a task's training games and the grader's prompts as an environment package for verifiers."""

import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from string import Template

from agent2rl import __version__, registry
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.core.task import ExportableEvaluator, Task
from agent2rl.evaluators.episodes import Episodes
from agent2rl.record.files import create_folder
from agent2rl.run.expert_help import apply_expert_help
from agent2rl.run.private_places import find_private_places
from agent2rl.run.sandbox_choice import open_sandbox
from agent2rl.run.settings import Settings
from agent2rl.run.task_data import load_task_data, write_training_data
from agent2rl.run.workspace import EVAL


def export_verifiers_package(
    task_name: str,
    data_dir: Path | None,
    target: Path,
    settings: Settings,
    tell: Callable[[str], None] = lambda _: None,
) -> str:
    """Write the package, whole or not at all, and return the environment's name."""
    task = registry.find_task(task_name)
    if task.world is None or not isinstance(task.evaluator, Episodes):
        raise UserError(
            f"The task {task.id!r} has no world to play in.",
            "Export a task with one, such as alfworld-mini. `agent2rl export harbor` exports any task.",
        )
    name = f"agent2rl-{task.id}"
    with create_folder(target) as draft:
        package = draft / name.replace("-", "_")
        _write_package(package, task, data_dir, settings, tell)
        values = {"name": name, "package": package.name, "task": task.id, "version": __version__}
        for source, path in (("pyproject.toml", draft), ("README.md", draft), ("__init__.py", package)):
            (path / source).write_text(_render_file(f"{source}.txt", values), encoding="utf-8")
    return name


def _write_package(
    package: Path, task: Task, data_dir: Path | None, settings: Settings, tell: Callable[[str], None]
) -> None:
    data = package / "data"
    data.mkdir(parents=True)
    opened = open_sandbox(AUTO_SANDBOX, find_private_places(settings))
    tell(opened.description)
    loaded = load_task_data(task, data_dir, settings.cache, opened.sandbox)
    if task.withhold is not None:
        loaded = apply_expert_help(task, loaded, "none").splits
    write_training_data(data, task, loaded.train, loaded.folders, templated=True, expert=False)
    for name, folder in loaded.folders.items():
        if isinstance(folder, Path):
            shutil.copytree(folder, data / name)
    assert isinstance(task.evaluator, ExportableEvaluator)
    (package / EVAL).write_text(task.evaluator.export_program(), encoding="utf-8")


def _render_file(name: str, values: dict[str, str]) -> str:
    template = files("agent2rl.interop").joinpath("verifiers_files", name).read_text(encoding="utf-8")
    return Template(template).substitute(values)
