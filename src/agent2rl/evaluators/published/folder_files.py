"""Read published task folders on the host, without running their code.

A folder's data script is run by `download.py`, in a sandbox.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.task import DataScript, Example
from agent2rl.evaluators.published.contract import BenchmarkConfig

TRAIN, TEST = "train.jsonl", "test.jsonl"
TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NOT_CODE = frozenset({"data", "__pycache__"})
MOST_CODE_BYTES = 256 << 20

# Files of a folder


def list_folder_files(folder: Path) -> list[Path]:
    """Return the folder's files outside `data/` that are not hidden. Its evaluator may use each of them."""
    files = []
    for directory, subdirectories, names in os.walk(folder):
        subdirectories[:] = [
            name for name in subdirectories if not name.startswith(".") and name not in NOT_CODE
        ]
        paths = (Path(directory, name) for name in names if not name.startswith("."))
        files += [path for path in paths if path.is_file()]
    if sum(path.stat().st_size for path in files) > MOST_CODE_BYTES:
        raise UserError(
            f"{folder} has more than {MOST_CODE_BYTES >> 20} MiB outside data/.",
            "Put data files into data/, or pass them with --data-dir.",
        )
    return sorted(files)


def copy_folder_files(folder: Path, files: Sequence[Path], target: Path) -> None:
    """Copy these files of the folder to a new directory, with their names in the folder."""
    for path in files:
        if path.is_relative_to(folder) and path.is_file():
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def hash_folder_files(folder: Path, files: Sequence[Path]) -> str:
    hashes = [
        (path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files
    ]
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def find_exposed_files(folder: Path, names: Sequence[str]) -> Mapping[str, Path]:
    """Return the files that the agent sees besides the data, by name. The data are given anyway."""
    exposed = {}
    for name in names:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or path.is_dir():
            raise UserError(f"expose_files: {name!r} is not a file inside {folder}.")
        if not path.is_relative_to(folder / "data"):
            exposed[str(PurePosixPath(path.relative_to(folder)))] = path
    return exposed


def require_exposed_files(exposed: Mapping[str, Path]) -> None:
    for name, path in exposed.items():
        if not path.is_file():
            raise UserError(f"expose_files: there is no {name!r}.", "Add the file, or remove its name.")


# config.yaml: the configuration of a folder whose eval.py scores each answer


class TaskFolderConfig(BaseModel):
    """The keys of config.yaml. Published folders have further keys, which are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    eval_mode: str = "per_sample"
    description: str = ""
    expose_files: tuple[str, ...] = ()


def read_task_config(path: Path) -> TaskFolderConfig:
    try:
        values = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"Cannot read {path}: {error.strerror}.", "A task folder needs a config.yaml."
        ) from error
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {error}.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} has no keys and values.", "It needs at least `name: my-task`.")
    try:
        config = TaskFolderConfig.model_validate(
            {key: value for key, value in values.items() if value is not None}
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {key}: {first['msg']}.") from error
    if config.eval_mode != "per_sample":
        raise UserError(
            f"{path}: eval_mode {config.eval_mode!r} is not supported.",
            "Use per_sample: eval.py scores each answer.",
        )
    return config


# BenchmarkConfig(…): the configuration of a folder whose eval.py has an evaluator class


def read_benchmark_config(folder: Path) -> BenchmarkConfig:
    """Return the `BenchmarkConfig(…)` of a folder, from its `__init__.py` or its parent folder's.

    Only literal values are read; nothing runs. Without one, the folder's name is the benchmark's.
    """
    for path in list_config_sources(folder):
        for values in _find_config_calls(path):
            if path.parent == folder or values.get("id") == folder.name:
                return _make_config(values, path, folder)
    return BenchmarkConfig(id=folder.name)


def list_config_sources(folder: Path) -> list[Path]:
    """Return the files that may define the folder's configuration."""
    return [path for path in (folder / "__init__.py", folder.parent / "__init__.py") if path.is_file()]


def _find_config_calls(path: Path) -> Iterator[dict[str, object]]:
    for node in ast.walk(parse_python(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "BenchmarkConfig":
            literals = ((keyword.arg, _read_literal(keyword.value)) for keyword in node.keywords)
            yield {name: value for name, value in literals if name is not None and value is not None}


def _read_literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _make_config(values: dict[str, object], path: Path, folder: Path) -> BenchmarkConfig:
    name, settings = values.get("id", folder.name), values.get("eval_config")
    exposed, evaluator = values.get("expose_files", []), values.get("evaluator_class", "")
    if not isinstance(name, str) or not TASK_NAME.fullmatch(name):
        raise UserError(f"{path}: the id {name!r} is not a name of letters, digits, '.', '_' and '-'.")
    if not isinstance(settings, dict | None):
        raise UserError(f"{path}: eval_config is not a dictionary.")
    if not isinstance(exposed, list) or not all(isinstance(each, str) for each in exposed):
        raise UserError(f"{path}: expose_files is not a list of names.")
    return BenchmarkConfig(
        id=name,
        evaluator_class=str(evaluator),
        description=str(values.get("description", "")),
        eval_config=settings,
        expose_files=exposed,
    )


def parse_python(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path} is not Python: {error}.") from error


# Rows of train.jsonl, and their split

SPLIT_SEED = 0
TRAIN_SHARE = 0.6
"""Share of the questions that the agent gets. Feedback and held-out get half of the rest each."""
HIDDEN = "hidden"
"""Part of the ids of rows that the agent does not get."""


@dataclass(frozen=True)
class TrainRowSplit:
    """The rows of a train.jsonl, split."""

    train: tuple[Example, ...]
    feedback: tuple[Example, ...]
    heldout: tuple[Example, ...]


def read_published_rows(path: Path, task: str) -> tuple[Example, ...]:
    """Read rows as the published code does: any JSON object; a missing question or answer is empty."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read {path}: {error}.") from error
    texts = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    return tuple(
        _make_example(line, f"{path}, line {number}", f"{task}-train-{index:04d}")
        for index, (number, line) in enumerate(texts)
    )


def _make_example(line: str, location: str, name: str) -> Example:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # fails for a lone surrogate, which cannot be written
    except (ValueError, RecursionError) as error:
        raise UserError(f"{location} is not JSON: {error}.", "Each line must be a JSON object.") from error
    if not isinstance(row, dict):
        raise UserError(f"{location} is not a JSON object.", 'Write {"question": …, "answer": …}.')
    texts = {}
    for key in ("question", "answer"):
        texts[key] = _to_text(row.get(key, ""))
        if isinstance(row.get(key), str):
            del row[key]  # other types stay in the meta, so that the evaluator gets them unconverted
    return Example(name, texts["question"], texts["answer"], row)


def _to_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def rebuild_row(example: Example) -> dict[str, JsonValue]:
    """Return the row that an example was read from."""
    return {"question": example.prompt, "answer": example.target, **example.meta}


def split_train_rows(rows: Sequence[Example], path: Path) -> TrainRowSplit:
    """Split rows with a fixed seed. Rows with the same question stay together."""
    questions = sorted({row.prompt for row in rows}, key=_rank_question)
    hidden = len(questions) - int(TRAIN_SHARE * len(questions))
    if hidden < 2 or len(questions) < 3:
        raise UserError(
            f"{path} has {len(questions)} different questions: too few for a split into training, feedback "
            "and held-out rows.",
            "Add rows, or use --protocol paper, which scores on the training data itself.",
        )
    feedback, heldout = set(questions[: hidden // 2]), set(questions[hidden // 2 : hidden])

    def take_hidden_rows(questions: set[str]) -> tuple[Example, ...]:
        """Return the rows of these questions, with ids that no training row has."""
        return tuple(
            replace(row, id=row.id.replace("-train-", f"-{HIDDEN}-"))
            for row in rows
            if row.prompt in questions
        )

    train = tuple(row for row in rows if row.prompt not in feedback | heldout)
    return TrainRowSplit(train, take_hidden_rows(feedback), take_hidden_rows(heldout))


def _rank_question(question: str) -> str:
    return hashlib.sha256(f"{SPLIT_SEED}:{question}".encode()).hexdigest()


def is_training_row(example: Example) -> bool:
    """Return whether the agent has this row: it was not split off."""
    return f"-{HIDDEN}-" not in example.id


# Describe how a folder's data script is run. `download.py` is the program that runs it, in a sandbox.


DATA_MODULE, DATA_PROGRAM = "data.py", "download_data.py"


def make_data_script(folder: Path, files: Sequence[Path], name: str) -> DataScript | None:
    """Return the folder's data script; None if it has none, or if its data are there already."""
    data = folder / "data"
    filled = (data / TRAIN).is_file() if name == DATA_PROGRAM else data.is_dir() and any(data.iterdir())
    if filled or folder / name not in files:
        return None
    return DataScript(
        argv=(sys.executable, "-m", "agent2rl.evaluators.published.download", folder.name, name),
        folder=folder,
        files=tuple(files),
        sha256=hash_folder_files(folder, files),
        output=f"{folder.name}/data",
        name=name,
    )
