"""Prepare the inputs of a run and pin them by content.

They are the base model (shipped, local or from the Hugging Face hub) and the task's splits.

Files come through the hub's own cache (HF_HOME), so that nothing is downloaded twice and a machine without a
network can use what it has. From there they are linked into our cache as plain files, which a sandbox can
mount. Only configuration, tokenizer and safetensors weights are downloaded, never code or pickles. The
library reads endpoint and token itself (HF_ENDPOINT, HF_TOKEN). It resumes interrupted transfers. After a
crash it keeps the complete files.

Prepared inputs are in the user's cache, each in a directory named after its content. The held-out file is
written here and opened again only by a grading child.
"""

import errno
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agent2rl import registry
from agent2rl.core.errors import MachineError, UserError, WorldError
from agent2rl.core.grading_records import Split
from agent2rl.core.model import ShippedModel
from agent2rl.core.records import Asset, RunSpec, ScoringProtocol
from agent2rl.core.sandbox import Sandbox
from agent2rl.core.task import DataFolder, Example, Splits, Task
from agent2rl.grading.base_model import BaseModel, read_base_model
from agent2rl.grading.file_hashes import FileHashCache
from agent2rl.grading.fingerprint import Fingerprint
from agent2rl.grading.freeze import compute_manifest
from agent2rl.grading.grading_child import EvaluatorFolder, SplitFile
from agent2rl.grading.worker import ExampleRow
from agent2rl.record.files import sha256_file, sha256_text
from agent2rl.run.directory_cache import build_once, store_by_content, write_if_changed
from agent2rl.run.expert_help import apply_expert_help
from agent2rl.run.machine import read_free_disk_bytes
from agent2rl.run.sibling_files import load_siblings
from agent2rl.run.task_data import load_task_data
from agent2rl.training.demonstrations import format_demonstrations

# Models of the Hugging Face hub, pinned to a commit: org/name, or org/name@revision.

HUB_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII
)
COMMIT = re.compile(r"[0-9a-f]{40}")
CONFIG = "config.json"
SINGLE, INDEX, SHARDS = "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"
HUB_SETTINGS_FILES = ("*.json", "*.jinja", "*.model", "vocab.txt", "merges.txt")
PROBE_SECONDS = 5.0
"""Timeout for the hub's first answer."""


@dataclass(frozen=True)
class HubModel:
    repo: str
    commit: str

    def __str__(self) -> str:
        return f"{self.repo}@{self.commit}"

    @property
    def folder(self) -> str:
        return str(self).replace("/", "--")


def is_hub_name(name: str) -> bool:
    return HUB_NAME.fullmatch(name) is not None


def resolve_hub_model(name: str) -> HubModel:
    """Resolve a name to its current commit; without a network, to the commit that was last used here."""
    match = HUB_NAME.fullmatch(name)
    assert match is not None, name
    repo, revision = match["repo"], match["revision"] or "main"
    if COMMIT.fullmatch(revision):
        return HubModel(repo, revision)
    hub = _import_hub_library()
    offline = _list_remote_files(hub, repo, revision) is None
    with _translate_hub_errors(hub, repo, revision):
        config = hub.hf_hub_download(repo, CONFIG, revision=revision, local_files_only=offline)
    return HubModel(repo, Path(config).parent.name)


def download_hub_model(model: HubModel, directory: Path, tell: Callable[[str], None]) -> None:
    """Download the model's files into an empty directory."""
    hub = _import_hub_library()
    sizes = _list_remote_files(hub, model.repo, model.commit)
    with _translate_hub_errors(hub, model.repo, model.commit):
        files = _find_cached_files(hub, model) if sizes is None else _download_files(hub, model, sizes, tell)
        damaged = [file for file in files if not _matches_hash(file)]
        for file in damaged if sizes is not None else ():
            hub.hf_hub_download(model.repo, file.name, revision=model.commit, force_download=True)
    for file in damaged:
        if not _matches_hash(file):
            raise WorldError(f"{file.name} of {model} is damaged.", f"Delete {file.resolve()} and try again.")
    for file in files:
        _link_or_copy(file.resolve(), directory / file.name)


def _import_hub_library() -> Any:
    try:
        hub = importlib.import_module("huggingface_hub")
        for part in ("constants", "errors", "utils"):
            importlib.import_module(f"huggingface_hub.{part}")
    except ImportError as error:
        raise UserError(
            "Models of the hub need huggingface-hub, which is not installed.",
            'Install it: pip install "agent2rl[hub]". Or name a model directory that exists.',
        ) from error
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity_error()
    return hub


def _list_remote_files(hub: Any, repo: str, revision: str) -> dict[str, int] | None:
    """Return every file with its size, or None if the hub is unreachable. No retries: they take minutes."""
    try:
        with _translate_hub_errors(hub, repo, revision):
            info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=PROBE_SECONDS)
    except WorldError:
        return None
    return {file.rfilename: file.size or 0 for file in info.siblings}


def _download_files(
    hub: Any, model: HubModel, sizes: dict[str, int], tell: Callable[[str], None]
) -> list[Path]:
    names = _select_model_files(model, sizes)
    cached = {name: hub.try_to_load_from_cache(model.repo, name, revision=model.commit) for name in names}
    size = sum(sizes[name] for name in names if not isinstance(cached[name], str))
    cache = Path(hub.constants.HF_HUB_CACHE)
    if (free := read_free_disk_bytes(cache)) < size:
        raise MachineError(
            f"{model.repo} needs {size / 1e9:,.1f} GB more in {cache}, where {free / 1e9:,.1f} GB are free.",
            "Free some space, or name another directory in HF_HOME.",
        )
    if size:
        tell(f"downloading {model.repo} ({size / 1e6:,.1f} MB)")
    folder = hub.snapshot_download(model.repo, revision=model.commit, allow_patterns=names)
    return [Path(folder) / name for name in names]


def _find_cached_files(hub: Any, model: HubModel) -> list[Path]:
    """Return the model's files from the hub's cache if they are complete."""
    config = hub.hf_hub_download(model.repo, CONFIG, revision=model.commit, local_files_only=True)
    folder = Path(config).parent
    try:
        names = {file.path for file in hub.get_cached_repo_tree(model.repo, revision=model.commit)}
    except (AttributeError, hub.errors.CachedRepoTreeNotFoundError):  # fetched by an older library
        names = {file.name for file in folder.iterdir()}
    if (folder / INDEX).is_file():
        names.update(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
    files = [folder / name for name in _select_model_files(model, names)]
    if absent := [file.name for file in files if not file.is_file()]:
        raise FileNotFoundError(f"{', '.join(absent[:3])} is not there")
    return files


def _select_model_files(model: HubModel, files: Iterable[str]) -> list[str]:
    """Select the model's files of a repository, with only one format of the weights."""
    names = sorted(name for name in files if "/" not in name)
    if SINGLE in names:
        weights = [SINGLE]
    else:
        weights = [name for name in names if fnmatchcase(name, SHARDS) and INDEX in names]
    if not weights:
        raise UserError(
            f"{model.repo} has no safetensors weights at {model.commit[:12]}, and no others are ever loaded.",
            "Name a revision or a model that has them.",
        )
    settings = [name for name in names if any(fnmatchcase(name, pattern) for pattern in HUB_SETTINGS_FILES)]
    index = [] if SINGLE in names else [INDEX]
    return [*weights, *index, *(name for name in settings if not name.endswith(".index.json"))]


def _matches_hash(file: Path) -> bool:
    """Check a file by its name: the hub's cache names large files by sha256 and small ones by git hash."""
    blob = file.resolve()
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return sha256_file(blob) == blob.name
    if COMMIT.fullmatch(blob.name):
        content = blob.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == blob.name
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    """Hard-link the file if that works and everybody may read it, else copy it."""
    if source.stat().st_mode & 0o444 == 0o444:
        with suppress(OSError):  # different file system or owner
            target.hardlink_to(source)
            return
    shutil.copyfile(source, target)


@contextmanager
def _translate_hub_errors(hub: Any, repo: str, revision: str) -> Iterator[None]:
    """Translate the library's errors: the user can fix refusals, everything else is the hub's fault."""
    errors = hub.errors
    try:
        yield
    except (UserError, MachineError):
        raise
    except errors.GatedRepoError as error:
        raise UserError(
            f"{repo} is gated: its owner gives it to those who accept its terms.",
            f"Accept them at {hub.constants.ENDPOINT}/{repo}, then set HF_TOKEN to a token of your account.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{repo} has no revision {revision!r}.", "Name a branch, tag or commit.") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"There is no directory {repo!r}, and the hub has no model of that name that you may read.",
            "Mend the name. A private model needs HF_TOKEN.",
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise UserError(f"{repo} is no model for transformers: it has no {CONFIG}.") from error
    except errors.LocalEntryNotFoundError as error:
        raise _make_unreachable_error(repo, revision, "") from error
    except Exception as error:  # the library lets those of its HTTP client through
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise UserError(f"The hub does not give you {repo} ({status}).", "Check HF_TOKEN.") from error
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise MachineError("The disk is full.", "Free some space, or set HF_HOME elsewhere.") from error
        said = str(error).partition("\n")[0].rstrip(".")
        raise _make_unreachable_error(repo, revision, f" ({type(error).__name__}: {said})") from error


def _make_unreachable_error(repo: str, revision: str, why: str) -> WorldError:
    return WorldError(
        f"The hub cannot be reached, and {repo}@{revision} is not complete in its cache{why}.",
        "Check the network, HF_ENDPOINT and HF_HOME, or name a model directory.",
    )


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
    directory = prepare_model_directory(model, cache, tell)
    check_model(directory)
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
    siblings = load_siblings(spec.siblings, cache, base)
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
        config = _import_hub_library().try_to_load_from_cache(model.repo, CONFIG, revision=model.commit)
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
