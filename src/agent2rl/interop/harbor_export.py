"""Write a task in Harbor's format: an agent's image, a verifier's image with our grader, and a model volume.

The agent works in its own image, which has the training data, eval.py, the package without its tasks, and
the base model read-only. What it leaves in /workspace/output/final is its submission. Harbor hands that to
the verifier, which runs in a separate container: only that one has the evaluation data.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.resources import files
from pathlib import Path
from string import Template

import agent2rl
from agent2rl import __version__, registry
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import Budget, ExpertHelp, Mode, RunSpec
from agent2rl.core.sandbox import AUTO_SANDBOX
from agent2rl.core.task import ExportableEvaluator, Task
from agent2rl.interop.harbor_task import (
    GRADING_FILE,
    HARBOR_SCHEMA,
    MODEL_PATH,
    SUBMISSION,
    TASK_FILE,
    WORKSPACE,
    HarborGrading,
    format_toml,
)
from agent2rl.record.files import create_folder, write_record
from agent2rl.run import task_data
from agent2rl.run.assets import Assets, load_assets, pin_model_name
from agent2rl.run.expert_help import choose_expert_help
from agent2rl.run.private_places import find_private_places
from agent2rl.run.sandbox_choice import open_sandbox
from agent2rl.run.settings import Settings
from agent2rl.run.workspace import EVAL, MODES
from agent2rl.training.demonstrations import DEMONSTRATIONS_FILE

UNSAFE = re.compile(r"[^a-z0-9._-]+")
PYTHON_IMAGE = "python:3.11-slim-bookworm"
ENGINE_EXTRAS = {"transformers": frozenset({"train"}), "vllm": frozenset({"train", "vllm"})}
"""Extras of the package that an engine needs, and training for it."""
WORLD = (
    "The task has a world. `agent2rl.environments.adapters.open_world()` opens its training games, and\n"
    "`agent2rl.training` trains in them: see `EVALUATOR` in `eval.py` for the prompts of grading.\n\n"
)
SOLUTION = "Submits the untouched base model, which scores nothing: there is no reference solution."


@dataclass(frozen=True)
class HarborOptions:
    """What the user chooses of a Harbor task."""

    task: str
    """As resolved by the registry."""
    model: str
    engine: str
    wall_seconds: float
    grading_seconds: float
    mode: Mode = "free"
    expert: ExpertHelp | None = None
    seed: int = 0
    gpus: int = 0
    data_dir: Path | None = None


@dataclass(frozen=True)
class ExportedTask:
    model_directory: Path
    """The base model here, which goes into the volume."""
    volume: str
    """Name of the volume."""


def export_harbor_task(
    options: HarborOptions, target: Path, settings: Settings, tell: Callable[[str], None]
) -> ExportedTask:
    """Write the task's folder, whole or not at all."""
    task = registry.find_task(options.task)
    registry.require_loader(options.engine)
    if task.judged:
        raise UserError(
            f"The answers of {task.id!r} are scored by a judge, and Harbor's verifier has no network.",
            "Choose a task that a rule scores.",
        )
    with create_folder(target) as draft:
        spec = _make_spec(options, task)
        opened = open_sandbox(AUTO_SANDBOX, find_private_places(settings, spec))
        tell(opened.description)
        assets = load_assets(spec, task, settings.cache, opened.sandbox, tell)
        grading = _make_grading(options, spec, assets)
        volume = f"agent2rl-{make_safe_name(grading.model)}-{grading.model_sha256[:12]}"
        extras = ENGINE_EXTRAS.get(options.engine, frozenset())
        requirements = "".join(f"{line}\n" for line in list_requirements(extras))
        _write_agent_side(draft / "environment", task, spec, assets, requirements, volume)
        _write_verifier_side(draft / "tests", options, grading, requirements, volume)
        _write_solution(draft / "solution")
        values = _describe_task(task, grading, volume)
        (draft / TASK_FILE).write_text(_render_task_file(task, options, grading), encoding="utf-8")
        for name in ("instruction.md", "README.md"):
            (draft / name).write_text(_render_file(name, values), encoding="utf-8")
    return ExportedTask(assets.base.directory, volume)


def make_safe_name(name: str) -> str:
    return UNSAFE.sub("-", name.lower()).strip("-._") or "unnamed"


def _make_spec(options: HarborOptions, task: Task) -> RunSpec:
    return RunSpec(
        task=options.task,
        agent="nop",
        model=pin_model_name(options.model),
        engine=options.engine,
        mode=options.mode,
        budget=Budget(wall_seconds=options.wall_seconds),
        seed=options.seed,
        expert=choose_expert_help(task, options.expert),
        data_dir=str(options.data_dir.resolve()) if options.data_dir else None,
    )


def _make_grading(options: HarborOptions, spec: RunSpec, assets: Assets) -> HarborGrading:
    kind, _, folder = options.task.partition(":")
    is_folder = kind in registry.TASK_FOLDER_KINDS and bool(folder)
    return HarborGrading(
        task=kind if is_folder else options.task,
        model=Path(options.model).name if Path(options.model).is_dir() else options.model,
        model_sha256=assets.base.manifest.sha256,
        engine=options.engine,
        mode=options.mode,
        expert=spec.expert,
        seed=options.seed,
        wall_seconds=options.wall_seconds,
        grading_seconds=options.grading_seconds,
        has_data=options.data_dir is not None,
        is_folder=is_folder,
    )


def _write_agent_side(
    folder: Path, task: Task, spec: RunSpec, assets: Assets, requirements: str, volume: str
) -> None:
    """Write the agent's image, with the files that its workspace has in a run and no grading API."""
    workspace = folder / "workspace"
    for name in ("data", "code", "output"):
        (workspace / name).mkdir(parents=True)
    data, expert = workspace / "data", spec.expert == "full"
    task_data.write_training_data(
        data, task, assets.train, assets.folders, assets.base.templated, expert=expert
    )
    for name, source in assets.folders.items():
        if isinstance(source, Path):
            shutil.copytree(source, data / name)
    if assets.demonstrations:
        (data / DEMONSTRATIONS_FILE).write_text(assets.demonstrations, encoding="utf-8")
    for name, source in task.exposes.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, workspace / name)
    if isinstance(task.evaluator, ExportableEvaluator):
        (workspace / EVAL).write_text(task.evaluator.export_program(), encoding="utf-8")
    (workspace / "description.md").write_text(task.description, encoding="utf-8")
    for name in ("code", "output"):
        (workspace / name / ".keep").touch()
    _write_image(folder, "agent.Dockerfile", requirements, volume, with_tasks=False)


def _write_verifier_side(
    folder: Path, options: HarborOptions, grading: HarborGrading, requirements: str, volume: str
) -> None:
    folder.mkdir()
    _write_image(folder, "verifier.Dockerfile", requirements, volume, with_tasks=True)
    write_record(folder / GRADING_FILE, grading)
    if options.data_dir:
        _copy_user_folder(options.data_dir, folder / "data")
    if grading.is_folder:
        _copy_user_folder(Path(options.task.partition(":")[2]), folder / "task")
    script = folder / "test.sh"
    script.write_text(_render_file("test.sh", {}), encoding="utf-8")
    script.chmod(0o755)


def _copy_user_folder(source: Path, target: Path) -> None:
    """Copy a folder of the user's. Links are refused, because they may lead anywhere on this machine."""
    if link := next((path for path in sorted(source.rglob("*")) if path.is_symlink()), None):
        raise UserError(f"{link} is a link.", "Put the file itself there.")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".*"))


def _write_image(folder: Path, template: str, requirements: str, volume: str, *, with_tasks: bool) -> None:
    copy_package(folder / "package", with_tasks)
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    values = {"image": PYTHON_IMAGE, "model": MODEL_PATH, "workspace": WORKSPACE, "volume": volume}
    (folder / "Dockerfile").write_text(_render_file(template, values), encoding="utf-8")
    (folder / "docker-compose.yaml").write_text(_render_file("docker-compose.yaml", values), encoding="utf-8")


def _write_solution(folder: Path) -> None:
    """Write what Harbor's oracle agent runs: it shows that the task works from end to end."""
    folder.mkdir()
    text = _render_file("solve.sh", {"solution": SOLUTION, "model": MODEL_PATH, "submission": SUBMISSION})
    (folder / "solve.sh").write_text(text, encoding="utf-8")
    (folder / "solve.sh").chmod(0o755)


def _render_task_file(task: Task, options: HarborOptions, grading: HarborGrading) -> str:
    return format_toml(
        {
            "": {"schema_version": HARBOR_SCHEMA, "artifacts": [SUBMISSION]},
            "task": {
                "name": f"agent2rl/{make_safe_name(task.id)}",
                "description": f"Improve {grading.model} at {task.id} by training it.",
            },
            "metadata": {
                "agent2rl_version": __version__,
                "base_model": grading.model,
                "base_model_sha256": grading.model_sha256,
                "mode": grading.mode,
            },
            "agent": {"timeout_sec": grading.wall_seconds, "user": "agent"},
            "verifier": {"environment_mode": "separate", "timeout_sec": 4 * grading.grading_seconds},
            "verifier.environment": {"network_mode": "no-network", **_list_gpus(options)},
            "environment": {
                "network_mode": "no-network",
                "workdir": WORKSPACE,
                "build_timeout_sec": 3600.0,
                **_list_gpus(options),
                "env": {
                    "WORKSPACE": WORKSPACE,
                    "MODEL_PATH": MODEL_PATH,
                    "DATA_PATH": f"{WORKSPACE}/data",
                    "OUTPUT_DIR": f"{WORKSPACE}/output",
                    "TASK": task.id,
                },
            },
        }
    )


def _list_gpus(options: HarborOptions) -> dict[str, int]:
    return {"gpus": options.gpus} if options.gpus else {}


def _describe_task(task: Task, grading: HarborGrading, volume: str) -> dict[str, str]:
    return {
        "task": task.id,
        "description": task.description.strip(),
        "model_name": grading.model,
        "model_sha256": grading.model_sha256,
        "model": MODEL_PATH,
        "workspace": WORKSPACE,
        "submission": SUBMISSION,
        "volume": volume,
        "rule": MODES[grading.mode],
        "world": WORLD if task.world else "",
        "seconds": f"{grading.wall_seconds:g}",
        "version": __version__,
    }


def _render_file(name: str, values: Mapping[str, str]) -> str:
    template = files("agent2rl.interop").joinpath("harbor_files", name).read_text(encoding="utf-8")
    return Template(template).substitute(values)


# Copy this package for a container, and list the packages that it needs there, as they are installed here.
#
# A container of an agent gets the package without its tasks, as sandboxes do: the tasks generate or name the
# evaluation data. Weights of shipped models are left out too, because the base model comes as a volume.


PACKAGE = Path(agent2rl.__file__).parent
LEFT_OUT = ("__pycache__", "*.pyc", "*.safetensors")
REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)[^;]*(?:;\s*(?P<marker>.*))?$")
EXTRA = re.compile(r"""extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")


def copy_package(target: Path, with_tasks: bool) -> None:
    """Copy the package into a folder of its name below `target`."""
    shutil.copytree(PACKAGE, target / PACKAGE.name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if not with_tasks:
        tasks = target / PACKAGE.name / "tasks"
        shutil.rmtree(tasks)
        tasks.mkdir()
        shutil.copyfile(PACKAGE / "tasks" / "__init__.py", tasks / "__init__.py")


def list_requirements(extras: frozenset[str]) -> list[str]:
    """Return the package's own requirements and those of its extras, pinned as they are installed."""
    lines = set()
    for line in requires("agent2rl") or ():
        match = REQUIREMENT.match(line)
        marker = match["marker"] or "" if match else ""
        extra = EXTRA.search(marker)
        if match and (extra is None or extra["extra"] in extras):
            lines.add(_pin_requirement(match["name"], "" if extra else marker))
    return sorted(lines)


def _pin_requirement(name: str, marker: str) -> str:
    """Pin the installed version, without a local label such as +cpu: no registry has those.

    `marker` says which Pythons need the package: the container's may need it where this one does not.
    """
    suffix = f"; {marker}" if marker else ""
    try:
        return f"{name}=={version(name).partition('+')[0]}{suffix}"
    except PackageNotFoundError:
        if marker:
            return f"{name}{suffix}"
        raise MachineError(
            f"The package {name} is not installed, so its version for the container is not known.",
            f"Install it: pip install {name}.",
        ) from None
