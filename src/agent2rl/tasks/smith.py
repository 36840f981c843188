"""Load a published rl-smith folder as it is: `smith:PATH`.

    config.yaml         name (the task is smith-NAME); optional: description, eval_mode, expose_files
    eval.py             evaluate(question, model_answer, reference_answer, **rest) -> float, from 0 to 1
    data/train.jsonl    a question and an answer per line; other keys are evaluate's further arguments
    download_data.py    optional; fills data/ if there is no data/train.jsonl
    description.md      optional; the task description for the agent

Every model continues the question itself, without a chat template, up to 2,048 tokens at temperature 0.

The published rule scores a model on train.jsonl, which the agent has. Only the paper's protocol does that
here, and every score has a warning. By default a part of train.jsonl is hidden from the agent and scores it.
"""

from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, PublishedProfile, Splits, Task
from agent2rl.evaluators.published.answer_scorer import EvalFile, PublishedSingleTurn
from agent2rl.evaluators.published.folder_files import (
    DATA_PROGRAM,
    TRAIN,
    find_exposed_files,
    hash_folder_files,
    list_folder_files,
    make_data_script,
    read_published_rows,
    read_task_config,
    require_exposed_files,
    split_train_rows,
)
from agent2rl.evaluators.single_turn import QuestionPrompt

SAMPLING = Sampling(max_tokens=2048, plain=True)
RESERVED = ("model_answer", "reference_answer")


def parse(argument: str) -> Task:
    """Build the task from the path of its folder."""
    folder = Path(argument).resolve()
    config = read_task_config(folder / "config.yaml")
    name, script, description = f"smith-{config.name}", folder / "eval.py", folder / "description.md"
    if not script.is_file():
        raise UserError(
            f"The task folder {folder} has no eval.py.", "Add one that defines evaluate(…) -> float."
        )
    files = list_folder_files(folder)
    exposed = find_exposed_files(folder, config.expose_files)
    digest = hash_folder_files(folder, [path for path in files if path != description])
    text = (
        description.read_text(encoding="utf-8")
        if description.is_file()
        else f"# {name}\n\n{config.description}".rstrip() + "\n"
    )

    def read_rows(data_dir: Path | None) -> tuple[Path, tuple[Example, ...]]:
        require_exposed_files(exposed)
        path = (data_dir or folder / "data") / TRAIN
        if not path.is_file():
            raise UserError(
                f"There is no {TRAIN} in {path.parent}.",
                "Add the rows, add a download_data.py that writes them, or pass them with --data-dir.",
            )
        rows = read_published_rows(path, name)
        for key in RESERVED:
            if any(key in row.meta for row in rows):
                raise UserError(f"{path}: the key {key!r} is an argument of evaluate.", "Rename the key.")
        return path, rows

    def load(data_dir: Path | None) -> Splits:
        path, rows = read_rows(data_dir)
        split = split_train_rows(rows, path)
        return Splits(split.train, split.feedback, split.heldout, test=rows)

    def load_published(data_dir: Path | None) -> Splits:
        """Return all rows as training data and as the test set, which is the published rule."""
        _, rows = read_rows(data_dir)
        return Splits(rows, rows, rows, test=rows)

    evaluator = PublishedSingleTurn(
        rule=f"smith-{digest}",
        score=EvalFile(script, positional=True),
        prompt=QuestionPrompt(sampling=SAMPLING),
    )
    return Task(
        id=name,
        level=1,
        description=text,
        load=load,
        evaluator=evaluator,
        paper=PublishedProfile("rl-smith", 1, evaluator, scoring="", load=load_published),
        exposes=exposed,
        code=tuple(files),
        data_script=make_data_script(folder, files, DATA_PROGRAM),
    )
