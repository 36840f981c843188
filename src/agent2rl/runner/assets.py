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
from agent2rl.core.model import ShippedModel
from agent2rl.core.records import Asset, RunSpec, ScoringProtocol, Split
from agent2rl.core.task import DataFolder, Example, Splits, Task
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.freeze import compute_manifest
from agent2rl.grading.grading_child import EvaluatorFolder, SplitFile
from agent2rl.grading.worker import ExampleRow
from agent2rl.runner import hub_models
from agent2rl.runner.directory_cache import build_once, store_by_content, write_if_changed
from agent2rl.store.files import sha256_file, sha256_text

ProgressCallback = Callable[[str], None]
"""Is told, in a line, of work that takes a while."""


@dataclass(frozen=True)
class Assets:
    base: BaseModel
    train: Sequence[Example]
    folders: Mapping[str, DataFolder]
    """Further training data, by name."""
    splits: dict[Split, SplitFile]
    records: tuple[Asset, ...]
    whole: Sequence[Example]
    """The training examples with what is withheld of them."""
    beside: Mapping[str, EvaluatorFolder]
    """What grading children see beside the examples, by name."""


def load_assets(spec: RunSpec, task: Task, cache: Path, tell: ProgressCallback = lambda _: None) -> Assets:
    model = pin_model_name(spec.model)
    base = read_base_model(prepare_model_directory(model, cache, tell))
    tell("loading the task's data")
    loaded = task.load(Path(spec.data_dir) if spec.data_dir else None)
    for name, examples in (("feedback", loaded.feedback), ("heldout", loaded.heldout)):
        if not examples:
            raise UserError(f"The task {task.id!r} has no {name} examples.")
    whole = loaded.train
    if not spec.expert:
        loaded = get_expert_remover(task)(loaded)
    splits = _write_splits(spec.protocol, loaded, cache / "tasks" / task.id)
    records = [Asset(name="model", source=model, sha256=base.manifest.sha256)]
    source = spec.data_dir or task.id
    train_sha256 = sha256_text(_format_examples(loaded.train))
    records.append(Asset(name="train", source=source, sha256=train_sha256))
    beside = prepare_beside_folders(loaded, cache / "tasks" / task.id)
    records += [Asset(name=name, source=source, sha256=file.sha256) for name, file in splits.items()]
    records += [
        Asset(name=f"beside {name}", source=source, sha256=folder.sha256) for name, folder in beside.items()
    ]
    return Assets(base, loaded.train, loaded.folders, splits, tuple(records), whole, beside)


def get_expert_remover(task: Task) -> Callable[[Splits], Splits]:
    if task.withhold is None:
        raise UserError(f"The task {task.id!r} has no expert.", "Leave out --no-expert.")
    return task.withhold


def pin_model_name(name: str) -> str:
    """The name that means the same model later: a directory's whole path, a hub model with its commit."""
    if is_directory(name):
        return str(Path(name).resolve())
    return str(hub_models.resolve_hub_model(name)) if hub_models.is_hub_name(name) else name


def prepare_model_directory(name: str, cache: Path, tell: ProgressCallback = lambda _: None) -> Path:
    """A directory as it is; a hub model or a shipped one out of the cache."""
    if is_directory(name):
        return Path(name).resolve()
    if hub_models.is_hub_name(name):
        found = hub_models.resolve_hub_model(name)
        return build_once(
            cache / "models" / "hub" / found.folder,
            lambda place: hub_models.download_hub_model(found, place, tell),
        )
    model = get_shipped_model(name)
    if not model.version:
        return write_if_changed(cache / "models" / model.id, model.write)

    def convert(directory: Path) -> None:
        tell(f"converting {model.id} (once)")
        model.write(directory)

    return build_once(cache / "models" / f"{model.id}-{model.version}", convert)


def choose_default_engine(name: str, gpus: Sequence[str]) -> str:
    """The engine that a model asks for; a directory or a hub model, for `transformers`.

    What asks for `transformers` gets `vllm` where it is installed and there is a GPU.
    """
    asked = (
        "transformers"
        if is_directory(name) or hub_models.is_hub_name(name)
        else get_shipped_model(name).engine
    )
    vllm = importlib.util.find_spec("vllm") if gpus else None  # looked for, not imported
    return "vllm" if asked == "transformers" and vllm and vllm.origin else asked


def is_directory(name: str) -> bool:
    """A shipped name means the shipped model, whatever lies in the current directory."""
    return name not in registry.list_names("models") and Path(name).is_dir()


def get_shipped_model(name: str) -> ShippedModel:
    if "/" in name:
        raise UserError(
            f"There is no model directory {name!r}.",
            "Name a directory, a shipped model, or one of the hub: org/name.",
        )
    return registry.find_model(name)


def _write_splits(protocol: ScoringProtocol, loaded: Splits, cache: Path) -> dict[Split, SplitFile]:
    """Under the paper's protocol the whole test set answers submissions and nothing is held out."""
    if protocol == "paper":
        return {"feedback": write_split_file(test_set(loaded), cache)}
    return {
        "feedback": write_split_file(loaded.feedback, cache),
        "heldout": write_split_file(loaded.heldout, cache),
    }


def test_set(loaded: Splits) -> Sequence[Example]:
    """What the paper's protocol scores."""
    whole = loaded.test
    return sorted([*loaded.feedback, *loaded.heldout], key=lambda e: e.id) if whole is None else whole


def prepare_beside_folders(loaded: Splits, cache: Path) -> dict[str, EvaluatorFolder]:
    """The user's own folders as they are; generated ones out of the cache."""
    found = {}
    for name, folder in loaded.beside.items():
        if isinstance(folder, Path):
            _require_plain_files(folder)
            found[name] = EvaluatorFolder(folder.resolve(), compute_manifest(folder.resolve()).sha256)
        else:
            found[name] = EvaluatorFolder(*store_by_content(cache / "beside", name, folder))
    return found


def _require_plain_files(folder: Path) -> None:
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


def write_split_file(examples: Sequence[Example], cache: Path) -> SplitFile:
    text = _format_examples(examples)
    digest = sha256_text(text)

    def write(directory: Path) -> None:
        (directory / "examples.jsonl").write_text(text, encoding="utf-8")

    path = write_if_changed(cache / digest, write) / "examples.jsonl"
    if sha256_file(path) != digest:
        raise MachineError(f"{path} is damaged and cannot be written anew.", "Delete it.")
    return SplitFile(path, len(examples), digest)


def _format_examples(examples: Sequence[Example]) -> str:
    return "".join(ExampleRow.from_example(example).model_dump_json() + "\n" for example in examples)
