"""Load a custom task from a folder in the published format: `folder:PATH`, or a name under --tasks-dir.

    config.yaml         name; optional: description, eval_mode (per_sample), expose_files
    eval.py             evaluate(question, model_answer, reference_answer, **kwargs) -> float, from 0 to 1
    description.md      optional; the task description for the agent
    data/train.jsonl    for the agent: a question and an answer per line; other keys are evaluate's kwargs
    data/test.jsonl     for scoring; split into feedback and held-out halves

`eval.py` is user code. It runs only when an answer is scored, in the grading child process. It may import
installed packages such as agent2rl. Of the folder, the child sees the configuration and the code files:
Python and prompt files outside `data/`. A change in any of them changes the evaluator's version.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from pydantic import JsonValue

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task, make_split_profile
from agent2rl.evaluators.published.answer_scorer import EvalFile
from agent2rl.evaluators.published.folder_files import TaskFolderConfig, read_task_config
from agent2rl.evaluators.single_turn import SingleTurn
from agent2rl.evaluators.task_data import read_rows, split_halves

SPLIT_SEED = 0
RESERVED = ("model_answer", "reference_answer")
CODE_SUFFIXES = frozenset({".py", ".md", ".txt", ".jinja", ".jinja2", ".j2"})
"""Files that `eval.py` may import or read as a prompt."""
NOT_CODE = frozenset({"data", "__pycache__"})


def parse(argument: str) -> Task:
    """Build the task from the path of its folder."""
    folder = Path(argument).resolve()
    config = read_task_config(folder / "config.yaml")
    script, description_file = folder / "eval.py", folder / "description.md"
    if not script.is_file():
        raise UserError(
            f"The task folder {folder} has no eval.py.", "Add one that defines evaluate(…) -> float."
        )
    try:
        code_files = _find_code_files(folder)
        digest = _hash_code_files(folder, [path for path in code_files if path != description_file])
        description = (
            description_file.read_text(encoding="utf-8")
            if description_file.is_file()
            else _write_description(config)
        )
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the task folder {folder}: {error}.") from error

    def load(data_dir: Path | None) -> Splits:
        return _load_splits(config, folder, data_dir or folder / "data")

    evaluator = SingleTurn(rule=f"eval.py-{digest}", score=EvalFile(script))
    return Task(
        id=config.name,
        level=1,
        description=description,
        load=load,
        evaluator=evaluator,
        paper=make_split_profile(evaluator),
        exposes=_find_exposed_files(config, folder),
        code=(folder / "config.yaml", *code_files),
    )


def _find_code_files(folder: Path) -> list[Path]:
    code_files = []
    for directory, subdirectories, names in os.walk(folder):
        subdirectories[:] = [
            name for name in subdirectories if not name.startswith(".") and name not in NOT_CODE
        ]
        paths = (Path(directory, name) for name in names if not name.startswith("."))
        code_files += [path for path in paths if path.suffix in CODE_SUFFIXES and path.is_file()]
    return sorted(code_files)


def _hash_code_files(folder: Path, paths: Sequence[Path]) -> str:
    hashes = [
        (path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths
    ]
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def _write_description(config: TaskFolderConfig) -> str:
    return f"# {config.name}\n\n{config.description}".rstrip() + "\n"


def _find_exposed_files(config: TaskFolderConfig, folder: Path) -> Mapping[str, Path]:
    """Return the files that the agent sees besides the training data.

    They need not exist: in the grading child they do not. Loading the data checks that.
    """
    test, exposed = folder / "data" / "test.jsonl", {}
    for name in config.expose_files:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or path.is_dir():
            raise UserError(f"expose_files: {name!r} is not a file inside {folder}.")
        if path == test.resolve() or (path.exists() and test.exists() and path.samefile(test)):
            raise UserError(
                f"expose_files: {name!r} is the test data, which the agent must not see.",
                "Remove it; the agent gets data/train.jsonl anyway.",
            )
        exposed[str(PurePosixPath(path.relative_to(folder)))] = path
    return exposed


def _load_splits(config: TaskFolderConfig, folder: Path, data: Path) -> Splits:
    for name, path in _find_exposed_files(config, folder).items():
        if not path.is_file():
            raise UserError(
                f"expose_files: there is no {name!r} in {folder}.", "Add the file, or remove its name."
            )
    if not (data / "test.jsonl").is_file():
        raise UserError(
            f"There is no test.jsonl in {data}: a score on training data would mean nothing.",
            "Put problems that the agent never sees into data/test.jsonl, or name the folder as smith:PATH: "
            "then a part of train.jsonl is hidden from the agent.",
        )
    feedback, heldout = split_halves(_read_examples(config, data, "test"), SPLIT_SEED)
    if not feedback:
        raise UserError(f"{data / 'test.jsonl'} has fewer than two rows, so it cannot be split into halves.")
    return Splits(_read_examples(config, data, "train"), feedback, heldout)


def _read_examples(config: TaskFolderConfig, data: Path, split: str) -> tuple[Example, ...]:
    examples = []
    for index, (source, row) in enumerate(read_rows(data / f"{split}.jsonl")):
        if clash := [key for key in RESERVED if key in row]:
            raise UserError(f"{source}: the key {clash[0]!r} is an argument of evaluate.", "Rename the key.")
        question, answer = row.pop("question"), row["answer"]
        if isinstance(answer, str):
            del row["answer"]  # any other type stays in the meta, so that evaluate gets it unconverted
        name = f"{config.name}-{split}-{index:04d}"
        examples.append(Example(name, _to_text(question), _to_text(answer), row))
    return tuple(examples)


def _to_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
