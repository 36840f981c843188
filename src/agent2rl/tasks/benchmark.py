"""Load a published benchmark folder as it is: `benchmark:PATH`.

    data.py             download_train_data(target_dir): writes what the agent gets
    eval.py             a subclass of BaseEvaluator with run_eval(model_path, workspace_path, …)
    description.md      optional; the task description for the agent
    __init__.py         optional; this or the parent folder's may hold BenchmarkConfig(id=…, eval_config=…, …)
    data/               optional; what data.py would write, if it is there already

The evaluator loads the model itself and returns one score. If its code names train.jsonl, it scores on the
training rows: then a part of them is hidden from the agent, and the evaluator gets these rows as train.jsonl.
The paper's protocol scores on all rows, as published, with a warning in every score. Any other evaluator has
its own test set, which cannot be split.
"""

import ast
import shutil
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from agent2rl.core.errors import UserError
from agent2rl.core.task import DataFolder, Example, PublishedProfile, Splits, Task
from agent2rl.evaluators.published.contract import BenchmarkConfig
from agent2rl.evaluators.published.folder_files import (
    DATA_MODULE,
    TEST,
    TRAIN,
    find_exposed_files,
    hash_folder_files,
    list_config_sources,
    list_folder_files,
    make_data_script,
    parse_python,
    read_benchmark_config,
    read_published_rows,
    rebuild_row,
    require_exposed_files,
    split_train_rows,
)
from agent2rl.evaluators.published.model_evaluator import DATA, ROWS, PublishedModelEvaluator

OPENCOMPASS = "OpenCompassEvaluator"
WITHHELD = frozenset({TRAIN, TEST})
"""Files of data/ that the agent does not get as they are: the training rows are written from the examples."""


def parse(argument: str) -> Task:
    """Build the task from the path of its folder."""
    folder = Path(argument).resolve()
    config = read_benchmark_config(folder)
    _require_evaluator_class(folder, config)
    files = list_folder_files(folder)
    exposed = find_exposed_files(folder, config.expose_files)
    digest = hash_folder_files(folder, [path for path in files if path.name != "description.md"])
    scores_on_train = any(
        TRAIN in path.read_text(encoding="utf-8", errors="replace")
        for path in files
        if path.suffix == ".py" and path.name != DATA_MODULE
    )

    def load(data_dir: Path | None, published: bool = False) -> Splits:
        require_exposed_files(exposed)
        return _load_splits(config.id, data_dir or folder / "data", scores_on_train, published)

    evaluator = PublishedModelEvaluator(folder, tuple(files), config, digest)
    return Task(
        id=config.id,
        level=1,
        description=_read_description(folder, config),
        load=load,
        evaluator=evaluator,
        paper=PublishedProfile("benchmark-folder", 1, evaluator, "", load=partial(load, published=True)),
        exposes=exposed,
        code=(*files, *(path for path in list_config_sources(folder) if path not in files)),
        data_script=make_data_script(folder, files, DATA_MODULE),
    )


def _require_evaluator_class(folder: Path, config: BenchmarkConfig) -> None:
    if config.evaluator_class.rpartition(".")[2] == OPENCOMPASS:
        raise UserError(
            f"The benchmark {config.id!r} is graded by OpenCompass, which agent2rl does not run.",
            "If it is a task of agent2rl, use that one: --task gsm8k --protocol paper.",
        )
    script = folder / "eval.py"
    if not script.is_file():
        raise UserError(
            f"The task folder {folder} has no eval.py.", "Add one with a subclass of BaseEvaluator."
        )
    if not any(isinstance(node, ast.ClassDef) for node in ast.walk(parse_python(script))):
        raise UserError(f"{script} defines no evaluator class.", "Define a subclass of BaseEvaluator.")


def _read_description(folder: Path, config: BenchmarkConfig) -> str:
    path = folder / "description.md"
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read {path}: {error}.") from error
    return f"# {config.id}\n\n{config.description}".rstrip() + "\n"


def _load_splits(name: str, data: Path, scores_on_train: bool, published: bool) -> Splits:
    """Load the data. `published`: train.jsonl scores as a whole, although the agent has it."""
    if not data.is_dir():
        raise UserError(
            f"There is no directory {data}.",
            "Add data.py with download_train_data(target_dir), or pass its result with --data-dir.",
        )
    rows = read_published_rows(data / TRAIN, name) if (data / TRAIN).is_file() else ()
    folders, evaluator_folders = _list_given_folders(data), {DATA: data}
    if not rows or not scores_on_train:
        train, feedback, heldout = rows, Example(f"{name}-test", "", ""), Example(f"{name}-test", "", "")
    elif published:
        train, feedback = rows, _gather_rows(f"{name}-train", rows)
        heldout = feedback
    else:
        split = split_train_rows(rows, data / TRAIN)
        train = split.train
        feedback = _gather_rows(f"{name}-hidden-feedback", split.feedback)
        heldout = _gather_rows(f"{name}-hidden-heldout", split.heldout)
    test = (feedback,) if feedback == heldout else None
    return Splits(
        train, (feedback,), (heldout,), test=test, folders=folders, evaluator_folders=evaluator_folders
    )


def _gather_rows(name: str, rows: tuple[Example, ...]) -> Example:
    """Return one example of many rows: the evaluator scores them together."""
    gathered: list[JsonValue] = [rebuild_row(row) for row in rows]
    return Example(name, "", "", {ROWS: gathered})


def _list_given_folders(data: Path) -> dict[str, DataFolder]:
    """Return what the agent gets besides train.jsonl: files and directories of the data."""
    entries = [path for path in sorted(data.iterdir()) if not path.name.startswith(".")]
    files = [path for path in entries if path.is_file() and path.name not in WITHHELD]

    def copy_files(target: Path) -> None:
        for path in files:
            shutil.copyfile(path, target / path.name)

    folders: dict[str, DataFolder] = {path.name: path for path in entries if path.is_dir()}
    return {**folders, ".": copy_files} if files else folders
