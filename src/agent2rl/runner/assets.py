"""The inputs of a run, prepared once and pinned by content: the base model, and the task's three splits.

Prepared things lie in the user's cache, each in a directory named after what it holds. The held-out file is
written here and opened again only by a grading child.
"""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent2rl import registry
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.model import Model
from agent2rl.core.records import Asset, Protocol, RunSpec, Split
from agent2rl.core.task import Example, Folder, Splits, Task
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.child import BesideFolder, SplitFile
from agent2rl.grading.freeze import manifest_of
from agent2rl.grading.worker import ExampleRow
from agent2rl.runner import hub
from agent2rl.runner.cache import by_content, each_time, once
from agent2rl.store.files import sha256_file, sha256_text

Tell = Callable[[str], None]
"""Is told, in a line, of work that takes a while."""


@dataclass(frozen=True)
class Assets:
    base: BaseModel
    train: Sequence[Example]
    folders: Mapping[str, Folder]
    """Further training data, by name."""
    splits: dict[Split, SplitFile]
    records: tuple[Asset, ...]
    whole: Sequence[Example]
    """The training examples with what is withheld of them."""
    beside: Mapping[str, BesideFolder]
    """What grading children see beside the examples, by name."""


def prepare(spec: RunSpec, task: Task, cache: Path, tell: Tell = lambda _: None) -> Assets:
    model = repeatable(spec.model)
    base = read_base_model(model_directory(model, cache, tell))
    tell("loading the task's data")
    loaded = task.load(Path(spec.data_dir) if spec.data_dir else None)
    for name, examples in (("feedback", loaded.feedback), ("heldout", loaded.heldout)):
        if not examples:
            raise UserError(f"The task {task.id!r} has no {name} examples.")
    whole = loaded.train
    if not spec.expert:
        loaded = without_expert(task)(loaded)
    splits = _splits(spec.protocol, loaded, cache / "tasks" / task.id)
    records = [Asset(name="model", source=model, sha256=base.manifest.sha256)]
    source = spec.data_dir or task.id
    train_sha256 = sha256_text(_text(loaded.train))
    records.append(Asset(name="train", source=source, sha256=train_sha256))
    beside = beside_folders(loaded, cache / "tasks" / task.id)
    records += [Asset(name=name, source=source, sha256=file.sha256) for name, file in splits.items()]
    records += [
        Asset(name=f"beside {name}", source=source, sha256=folder.sha256) for name, folder in beside.items()
    ]
    return Assets(base, loaded.train, loaded.folders, splits, tuple(records), whole, beside)


def without_expert(task: Task) -> Callable[[Splits], Splits]:
    if task.withhold is None:
        raise UserError(f"The task {task.id!r} has no expert.", "Leave out --no-expert.")
    return task.withhold


def repeatable(name: str) -> str:
    """The name that means the same model later: a directory's whole path, a hub model with its commit."""
    if is_directory(name):
        return str(Path(name).resolve())
    return str(hub.resolve(name)) if hub.is_name(name) else name


def model_directory(name: str, cache: Path, tell: Tell = lambda _: None) -> Path:
    """A directory as it is; a hub model or a shipped one out of the cache."""
    if is_directory(name):
        return Path(name).resolve()
    if hub.is_name(name):
        found = hub.resolve(name)
        return once(cache / "models" / "hub" / found.folder, lambda place: hub.fetch(found, place, tell))
    model = shipped(name)
    if not model.version:
        return each_time(cache / "models" / model.id, model.write)

    def convert(directory: Path) -> None:
        tell(f"converting {model.id} (once)")
        model.write(directory)

    return once(cache / "models" / f"{model.id}-{model.version}", convert)


def default_engine(name: str, gpus: Sequence[str]) -> str:
    """The engine that a model asks for; a directory or a hub model, for `transformers`.

    What asks for `transformers` gets `vllm` where it is installed and there is a GPU.
    """
    asked = "transformers" if is_directory(name) or hub.is_name(name) else shipped(name).engine
    vllm = importlib.util.find_spec("vllm") if gpus else None  # looked for, not imported
    return "vllm" if asked == "transformers" and vllm and vllm.origin else asked


def is_directory(name: str) -> bool:
    """A shipped name means the shipped model, whatever lies in the current directory."""
    return name not in registry.names("models") and Path(name).is_dir()


def shipped(name: str) -> Model:
    if "/" in name:
        raise UserError(
            f"There is no model directory {name!r}.",
            "Name a directory, a shipped model, or one of the hub: org/name.",
        )
    return registry.model(name)


def _splits(protocol: Protocol, loaded: Splits, cache: Path) -> dict[Split, SplitFile]:
    """Under the paper's protocol the whole test set answers submissions and nothing is held out."""
    if protocol == "paper":
        return {"feedback": split_file(test_set(loaded), cache)}
    return {"feedback": split_file(loaded.feedback, cache), "heldout": split_file(loaded.heldout, cache)}


def test_set(loaded: Splits) -> Sequence[Example]:
    """What the paper's protocol scores."""
    whole = loaded.test
    return sorted([*loaded.feedback, *loaded.heldout], key=lambda e: e.id) if whole is None else whole


def beside_folders(loaded: Splits, cache: Path) -> dict[str, BesideFolder]:
    """The user's own folders as they are; generated ones out of the cache."""
    found = {}
    for name, folder in loaded.beside.items():
        if isinstance(folder, Path):
            _require_plain(folder)
            found[name] = BesideFolder(folder.resolve(), manifest_of(folder.resolve()).sha256)
        else:
            found[name] = BesideFolder(*by_content(cache / "beside", name, folder))
    return found


def _require_plain(folder: Path) -> None:
    """Nothing but files and folders: where a link leads is not in a grading's sandbox."""
    for directory, folders, files in os.walk(folder):
        for path in (Path(directory, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UserError(
                    f"{path} is {'a link' if path.is_symlink() else 'no plain file'}.",
                    "Put the file itself there: gradings see this folder and nothing around it.",
                )
            if not os.access(path, os.R_OK):
                raise UserError(f"{path} cannot be read.", "Change its permissions.")


def split_file(examples: Sequence[Example], cache: Path) -> SplitFile:
    text = _text(examples)
    digest = sha256_text(text)

    def write(directory: Path) -> None:
        (directory / "examples.jsonl").write_text(text, encoding="utf-8")

    path = each_time(cache / digest, write) / "examples.jsonl"
    if sha256_file(path) != digest:
        raise MachineError(f"{path} is damaged and cannot be written anew.", "Delete it.")
    return SplitFile(path, len(examples), digest)


def _text(examples: Sequence[Example]) -> str:
    return "".join(ExampleRow.of(example).model_dump_json() + "\n" for example in examples)
