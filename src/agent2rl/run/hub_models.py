"""Models of the Hugging Face hub, pinned to a commit: org/name, or org/name@revision.

Files come through the hub's own cache (HF_HOME), so that nothing is downloaded twice and a machine without a
network can use what it has. From there they are linked into our cache as plain files, which a sandbox can
mount. Only configuration, tokenizer and safetensors weights are downloaded, never code or pickles. The
library reads endpoint and token itself (HF_ENDPOINT, HF_TOKEN). It resumes interrupted transfers. After a
crash it keeps the complete files.
"""

import errno
import hashlib
import importlib
import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agent2rl.core.errors import ExternalServiceError, MachineError, UserError
from agent2rl.record.files import sha256_file
from agent2rl.run.machine import read_free_disk_bytes

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
    hub = import_hub_library()
    offline = _list_remote_files(hub, repo, revision) is None
    with _translate_hub_errors(hub, repo, revision):
        config = hub.hf_hub_download(repo, CONFIG, revision=revision, local_files_only=offline)
    # The hub's cache has a folder for each commit.
    return HubModel(repo, Path(config).parent.name)


def download_hub_model(model: HubModel, directory: Path, tell: Callable[[str], None]) -> None:
    """Download the model's files into an empty directory."""
    hub = import_hub_library()
    sizes = _list_remote_files(hub, model.repo, model.commit)
    with _translate_hub_errors(hub, model.repo, model.commit):
        files = _find_cached_files(hub, model) if sizes is None else _download_files(hub, model, sizes, tell)
        damaged = [file for file in files if not _matches_hash(file)]
        for file in damaged if sizes is not None else ():
            hub.hf_hub_download(model.repo, file.name, revision=model.commit, force_download=True)
    for file in damaged:
        if not _matches_hash(file):
            raise ExternalServiceError(
                f"{file.name} of {model} is damaged.", f"Delete {file.resolve()} and try again."
            )
    for file in files:
        _link_or_copy(file.resolve(), directory / file.name)


def import_hub_library() -> Any:
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
    except ExternalServiceError:
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
        raise FileNotFoundError(f"{', '.join(absent[:3])} is missing")
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
    # The library's error for a gated repository is also one for a missing repository.
    except errors.GatedRepoError as error:
        raise UserError(
            f"{repo} is gated: access requires accepting its terms.",
            f"Accept them at {hub.constants.ENDPOINT}/{repo}, then set HF_TOKEN to a token of your account.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{repo} has no revision {revision!r}.", "Name a branch, tag or commit.") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"There is no directory {repo!r}, and the hub has no model of that name that you may read.",
            "Check the name. A private model needs HF_TOKEN.",
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise UserError(f"{repo} is not a transformers model: it has no {CONFIG}.") from error
    except errors.LocalEntryNotFoundError as error:
        raise _make_unreachable_error(repo, revision, "") from error
    except Exception as error:  # the library lets those of its HTTP client through
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise UserError(f"The hub denies access to {repo} ({status}).", "Check HF_TOKEN.") from error
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise MachineError("The disk is full.", "Free some space, or set HF_HOME elsewhere.") from error
        reason = str(error).partition("\n")[0].rstrip(".")
        raise _make_unreachable_error(repo, revision, f" ({type(error).__name__}: {reason})") from error


def _make_unreachable_error(repo: str, revision: str, why: str) -> ExternalServiceError:
    return ExternalServiceError(
        f"The hub cannot be reached, and {repo}@{revision} is not complete in its cache{why}.",
        "Check the network, HF_ENDPOINT and HF_HOME, or name a model directory.",
    )
