"""Write a task's training data as the directory that the agent sees.

data/
  train.jsonl     one {"id": …, "question": …, "answer": …, …} per line
  demonstrations.jsonl   games that the expert won, if the run has a number of them
  world.json      names the world to train in, if there is one
  <name>/         the task's folders
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import JsonValue

from agent2rl import registry
from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import ChatEvaluator, DataFolder, Evaluator, Example, Splits, Task


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
