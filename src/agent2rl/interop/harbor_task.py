"""What a Harbor task of ours says about its grading, and where its parts lie.

task.toml             Harbor's configuration
instruction.md        the agent's prompt
environment/          the agent's image: Dockerfile, the package without its tasks, the workspace
tests/                the verifier's image: Dockerfile, the whole package, GRADING_FILE
  data/               the task's official files, if it was exported with --data-dir
  task/               a task folder, if the task is one
README.md             how to run it
"""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.records import ExpertHelp, Mode, Record

GRADING_FILE = "grading.json"
TASK_FILE = "task.toml"
WORKSPACE = "/workspace"
MODEL_PATH = "/models/base"
SUBMISSION = f"{WORKSPACE}/output/final"
HARBOR_SCHEMA = "1.4"
Table = dict[str, JsonValue]


class HarborGrading(Record):
    """How the verifier grades, and how `agent2rl import harbor` runs the task: tests/grading.json."""

    format: Literal[1] = 1
    task: str
    """The task's name; `folder`, `smith` or `benchmark` for the task folder in tests/task."""
    model: str
    """Name of the base model."""
    model_sha256: str
    """Hash of its files; the verifier refuses any other model."""
    engine: str
    mode: Mode
    expert: ExpertHelp
    seed: int
    wall_seconds: Annotated[float, Field(gt=0)]
    grading_seconds: Annotated[float, Field(gt=0)]
    has_data: bool
    """Whether tests/data has the task's official files."""
    is_folder: bool
    """Whether the task is the folder in tests/task."""


def read_grading(folder: Path) -> HarborGrading:
    """Read the grading of an exported task; raise UserError if the folder is not one."""
    if not (folder / TASK_FILE).is_file():
        raise UserError(f"{folder} is not a Harbor task: it has no {TASK_FILE}.", "Name the task's folder.")
    try:
        config = tomllib.loads((folder / TASK_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {folder / TASK_FILE}: {error}.") from error
    path = folder / "tests" / GRADING_FILE
    if path.is_symlink() or not path.is_file():
        raise UserError(_explain_foreign_task(folder, config), FOREIGN_HINT)
    try:
        return HarborGrading.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(
            f"Cannot read {path}: it is damaged, or another version of agent2rl wrote it.",
            "Export the task again with `agent2rl export harbor`.",
        ) from error


FOREIGN_HINT = (
    "agent2rl runs the agent's side of Harbor tasks that `agent2rl export harbor` wrote. Run other tasks "
    "with Harbor itself."
)


def _explain_foreign_task(folder: Path, config: Table) -> str:
    """Say what a task of somebody else needs that is not here."""
    environment = config.get("environment")
    image = environment.get("docker_image") if isinstance(environment, dict) else None
    needs = ["a base model and a grader of its weights, which only exported tasks name"]
    if config.get("steps"):
        needs.append("several steps")
    if image or (folder / "environment" / "Dockerfile").is_file():
        needs.append("a container image")
    if list((folder / "environment").glob("docker-compose.*")):
        needs.append("services beside the agent's container")
    return f"{folder} is a Harbor task that agent2rl cannot run. It needs {', '.join(needs)}."


def format_toml(tables: dict[str, Table]) -> str:
    """Return tables as TOML. Root values are in the table ``. A string in JSON is a string in TOML."""
    parts = []
    for name, table in tables.items():
        lines = [f"[{name}]"] if name else []
        lines += [f"{key} = {_format_toml_value(value)}" for key, value in table.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _format_toml_value(value: JsonValue) -> str:
    if isinstance(value, dict):
        items = (f"{key} = {_format_toml_value(item)}" for key, item in value.items())
        return "{ " + ", ".join(items) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
