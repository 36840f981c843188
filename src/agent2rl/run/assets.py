"""Prepare the inputs of a run and pin them by content.

They are the base model (shipped, local or from the Hugging Face hub: `hub_models`) and the task's splits.

Prepared inputs are in the user's cache, each in a directory named after its content. The held-out file is
written here and opened again only by a grading child.
"""

import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent2rl import registry
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.grading_records import Split
from agent2rl.core.model import ShippedModel
from agent2rl.core.records import Asset, RunSpec, ScoringProtocol
from agent2rl.core.sandbox import Sandbox
from agent2rl.core.task import DataFolder, Example, Splits, Task
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.file_hashes import FileHashCache
from agent2rl.grading.fingerprint import SUFFIX, Fingerprint, read_fingerprint
from agent2rl.grading.freeze import compute_manifest
from agent2rl.grading.grading_child import EvaluatorFolder, SplitFile
from agent2rl.grading.worker import ExampleRow
from agent2rl.record.files import sha256_file, sha256_text
from agent2rl.run.directory_cache import build_once, store_by_content, write_if_changed
from agent2rl.run.expert_help import apply_expert_help
from agent2rl.run.hub_models import (
    CONFIG,
    download_hub_model,
    import_hub_library,
    is_hub_name,
    resolve_hub_model,
)
from agent2rl.run.task_data import load_task_data
from agent2rl.training.demonstrations import format_demonstrations

logger = logging.getLogger(__name__)

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
    demonstrations: str
    """The file of demonstrations; empty if the run has none."""
    evaluator_folders: Mapping[str, EvaluatorFolder]
    """What grading children see beside the examples, by name."""
    siblings: tuple[Fingerprint, ...] = ()
    """Models that no submission may look like."""
    regression_panel: tuple["PanelTask", ...] = ()


@dataclass(frozen=True)
class PanelTask:
    """Further examples that the base model and the best submission are graded on after the run."""

    name: str
    task: Task | None
    """None: the run's own."""
    examples: SplitFile
    evaluator_folders: Mapping[str, EvaluatorFolder]


def load_assets(
    spec: RunSpec,
    task: Task,
    cache: Path,
    sandbox: Sandbox,
    tell: ProgressCallback = lambda _: None,
    check_model: Callable[[Path], None] = lambda _: None,
) -> Assets:
    """Load the run's inputs. `check_model` gets the model's directory before its weights are read."""
    model = pin_model_name(spec.model)
    begin = time.monotonic()
    directory = prepare_model_directory(model, cache, tell)
    check_model(directory)
    # Hashing large weights takes long, and the task's data can be loaded meanwhile.
    with ThreadPoolExecutor(1, "base-model") as pool:
        reading = pool.submit(read_base_model, directory, get_hash_cache(cache))
        tell("loading the task's data")
        loaded = load_task_data(task, Path(spec.data_dir) if spec.data_dir else None, cache, sandbox, tell)
        base = reading.result()
    for name, examples in (("feedback", loaded.feedback), ("heldout", loaded.heldout)):
        if not examples:
            raise UserError(f"The task {task.id!r} has no {name} examples.")
    whole = loaded.train
    helped = apply_expert_help(task, loaded, spec.expert)
    loaded, demonstrations = helped.splits, format_demonstrations(helped.demonstrations)
    splits = _write_splits(spec.protocol, loaded, cache / "tasks" / task.id)
    records = [Asset(name="model", source=model, sha256=base.manifest.sha256)]
    source = spec.data_dir or task.id
    train_sha256 = sha256_text(_format_examples(loaded.train))
    records.append(Asset(name="train", source=source, sha256=train_sha256))
    if demonstrations:
        records.append(Asset(name="demonstrations", source=source, sha256=sha256_text(demonstrations)))
    evaluator_folders = prepare_evaluator_folders(loaded, cache / "tasks" / task.id)
    records += [Asset(name=name, source=source, sha256=file.sha256) for name, file in splits.items()]
    records += [
        Asset(name=f"beside {name}", source=source, sha256=folder.sha256)
        for name, folder in evaluator_folders.items()
    ]
    panel = load_panel(spec, task, whole, evaluator_folders, cache, sandbox, tell)
    records += [Asset(name=f"also {each.name}", source="", sha256=each.examples.sha256) for each in panel]
    siblings = load_siblings(spec.siblings, cache, base)
    logger.info(
        "Loaded %s (%s parameters) and %d training examples of %s in %.1f s",
        model,
        f"{base.parameters:,}",
        len(loaded.train),
        source,
        time.monotonic() - begin,
    )
    for record in records:
        logger.debug("Input %s: sha256 %s", record.name, record.sha256)
    records += [Asset(name=each.asset_name, source="", sha256=each.sha256) for each in siblings]
    return Assets(
        base,
        loaded.train,
        loaded.folders,
        splits,
        tuple(records),
        whole,
        demonstrations,
        evaluator_folders,
        siblings,
        panel,
    )


def pin_model_name(name: str) -> str:
    """The name that means the same model later: a directory's whole path, a hub model with its commit."""
    if is_directory(name):
        return str(Path(name).resolve())
    return str(resolve_hub_model(name)) if is_hub_name(name) else name


def prepare_model_directory(name: str, cache: Path, tell: ProgressCallback = lambda _: None) -> Path:
    """A directory as it is; a hub model or a shipped one out of the cache."""
    if is_directory(name):
        return Path(name).resolve()
    if is_hub_name(name):
        hub_model = resolve_hub_model(name)
        return build_once(
            cache / "models" / "hub" / hub_model.folder,
            lambda place: download_hub_model(hub_model, place, tell),
            get_hash_cache(cache),
        )
    model = get_shipped_model(name)
    if not model.version:
        return write_if_changed(cache / "models" / model.id, model.write)

    def convert(directory: Path) -> None:
        tell(f"converting {model.id} (once)")
        model.write(directory)

    return build_once(cache / "models" / f"{model.id}-{model.version}", convert, get_hash_cache(cache))


def get_hash_cache(cache: Path) -> FileHashCache:
    return FileHashCache(cache / "hashes")


def is_model_here(name: str, cache: Path) -> bool:
    """Whether a run can start with this model without a download."""
    if not is_hub_name(name) or is_directory(name):
        return True
    model = resolve_hub_model(name)
    if (cache / "models" / "hub" / model.folder).is_dir():
        return True
    with suppress(UserError):  # without the library, the hub's cache cannot be read
        config = import_hub_library().try_to_load_from_cache(model.repo, CONFIG, revision=model.commit)
        return isinstance(config, str)
    return False


def choose_default_engine(name: str, gpus: Sequence[str]) -> str:
    """The engine that a model asks for; a directory or a hub model, for `transformers`.

    What asks for `transformers` gets `vllm` where it is installed and there is a GPU.
    """
    engine = "transformers" if is_directory(name) or is_hub_name(name) else get_shipped_model(name).engine
    vllm = importlib.util.find_spec("vllm") if gpus else None  # looked for, not imported
    return "vllm" if engine == "transformers" and vllm and vllm.origin else engine


def is_directory(name: str) -> bool:
    """A shipped name means the shipped model, whatever lies in the current directory."""
    return name not in registry.list_names("models") and Path(name).is_dir()


def get_shipped_model(name: str) -> ShippedModel:
    if "/" in name:
        if Path(name).name == "model" and (Path(name).parent / "submission.json").is_file():
            raise UserError(
                f"The run did not keep the weights of submission {Path(name).parent.name}.",
                "`agent2rl show` says which it kept. Run again with --keep all to keep every one.",
            )
        raise UserError(
            f"There is no model directory {name!r}.",
            "Name a directory, a shipped model, or one of the hub: org/name.",
        )
    return registry.find_model(name)


def _write_splits(protocol: ScoringProtocol, loaded: Splits, cache: Path) -> dict[Split, SplitFile]:
    """Write the splits. In the paper's protocol the whole test set gives feedback; nothing is held out."""
    if protocol == "paper":
        return {"feedback": write_split_file(test_set(loaded), cache)}
    return {
        "feedback": write_split_file(loaded.feedback, cache),
        "heldout": write_split_file(loaded.heldout, cache),
    }


def test_set(loaded: Splits) -> Sequence[Example]:
    """Return the whole test set, which the paper's protocol scores."""
    whole = loaded.test
    return sorted([*loaded.feedback, *loaded.heldout], key=lambda e: e.id) if whole is None else whole


def prepare_evaluator_folders(loaded: Splits, cache: Path) -> dict[str, EvaluatorFolder]:
    """Return the folders of the evaluator: the user's own as they are, generated ones from the cache."""
    folders = {}
    for name, folder in loaded.evaluator_folders.items():
        if isinstance(folder, Path):
            _require_plain_files(folder)
            folders[name] = EvaluatorFolder(folder.resolve(), compute_manifest(folder.resolve()).sha256)
        else:
            folders[name] = EvaluatorFolder(*store_by_content(cache / "beside", name, folder))
    return folders


def _require_plain_files(folder: Path) -> None:
    """Refuse links and special files: the target of a link is not in the grading sandbox."""
    for directory, folders, files in os.walk(folder):
        for path in (Path(directory, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UserError(
                    f"{path} is {'a link' if path.is_symlink() else 'not a plain file'}.",
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


# The regression panel: `--also`.

OWN_TRAINING = "train"
"""The name of the panel's entry with the task's own training examples."""
TRAINING_SAMPLE = 100


def require_panel_task(name: str, own: str) -> None:
    """Raise UserError if the panel cannot have this task."""
    if name == OWN_TRAINING:
        return
    if name == own:
        raise UserError(f"The run is graded on {name} anyway.", "Leave it out of --also.")
    task = registry.find_task(name)
    if task.judged or "search" in task.proxy_services:
        needs = "a judge" if task.judged else "a search backend"
        raise UserError(
            f"{name} cannot be in --also: its grading needs {needs}.",
            "The regression panel has tasks that need neither, such as gsm8k-mini.",
        )


def load_panel(
    spec: RunSpec,
    task: Task,
    train: Sequence[Example],
    folders: Mapping[str, EvaluatorFolder],
    cache: Path,
    sandbox: Sandbox,
    tell: ProgressCallback = lambda _: None,
) -> tuple[PanelTask, ...]:
    """Load the examples of the regression panel, before anything is spent."""
    panel = []
    for name in spec.also:
        require_panel_task(name, spec.task)
        if name == OWN_TRAINING:
            # By a hash: the same sample in every run, whatever the order of the data.
            sample = sorted(train, key=lambda each: sha256_text(each.id))[:TRAINING_SAMPLE]
            file = write_split_file(sorted(sample, key=lambda each: each.id), cache / "tasks" / task.id)
            panel.append(PanelTask(name, None, file, folders))
            continue
        other = registry.find_task(name)
        loaded = load_task_data(other, None, cache, sandbox, tell)
        if not loaded.heldout:
            raise UserError(f"The task {name!r} has no held-out examples.", "Leave it out of --also.")
        place = cache / "tasks" / other.id
        file = write_split_file(loaded.heldout, place)
        panel.append(PanelTask(name, other, file, prepare_evaluator_folders(loaded, place)))
    return tuple(panel)


# Find the fingerprints that submissions of a run are compared with: those named, and those in the cache.


MOST_SIBLINGS = 200
FOLDER = "siblings"


def siblings_folder(cache: Path) -> Path:
    """Return the folder of the cache whose fingerprints are compared in every run."""
    return cache / FOLDER


def load_siblings(named: Iterable[str], cache: Path, base: BaseModel) -> tuple[Fingerprint, ...]:
    """Read all fingerprints of models that can be compared with the base, sorted by name.

    One that was named and cannot be compared is an error. The cache may hold those of other families.
    """
    found: dict[str, Fingerprint] = {}
    for path in map(Path, named):
        sibling = read_fingerprint(path)
        if not _is_comparable(sibling, base):
            raise UserError(
                f"{path} has no matrix in common with the base model: no name with the same shape.",
                "Leave it out. Siblings have the base model's architecture.",
            )
        _add_sibling(found, sibling, path)
    for path in sorted(siblings_folder(cache).glob(f"*{SUFFIX}")):
        sibling = read_fingerprint(path)
        if _is_comparable(sibling, base):
            _add_sibling(found, sibling, path)
    if len(found) > MOST_SIBLINGS:
        raise UserError(
            f"There are {len(found)} fingerprints to compare with; at most {MOST_SIBLINGS} are possible.",
            f"Remove some from {siblings_folder(cache)}.",
        )
    return tuple(found[name] for name in sorted(found))


def _add_sibling(found: dict[str, Fingerprint], sibling: Fingerprint, path: Path) -> None:
    known = found.setdefault(sibling.name, sibling)
    if known.sha256 != sibling.sha256:
        raise UserError(
            f"{path} is another fingerprint with the name {sibling.name!r}.",
            "Remove one, or make it again with another --name.",
        )


def _is_comparable(sibling: Fingerprint, base: BaseModel) -> bool:
    """Return whether it has a matrix of the base model and is not the base model itself."""
    if sibling.header.weights_sha256 == base.weights_sha256:
        return False
    return any(
        name in base.tensors and base.tensors[name].shape == shape for name, shape in sibling.shapes.items()
    )
