"""Load the data of tasks: JSON-lines rows, hub files, release archives, prompt files.

Hub files have pinned revisions; an archive is downloaded and unpacked once. A prompt file is TOML:

    chat = "…"           for a model with a chat template
    plain = "…"          for a model without one, which continues the text
    [plain]              or one text per kind of example
    pick_and_place_simple = "…"
    "" = "…"             for all others
"""

import hashlib
import importlib
import json
import logging
import shutil
import sys
import tempfile
import time
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import JsonValue, ValidationError

from agent2rl.core.errors import ExternalServiceError, MachineError, UserError
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example, Splits

logger = logging.getLogger(__name__)

# Rows of questions and answers, and the fixed split of a test set

Row = tuple[str, dict[str, JsonValue]]
"""The location of a row (`FILE, line N`, for messages), and the row."""


def read_rows(path: Path) -> Iterator[Row]:
    """Yield each row of a file. Every row must have a question and an answer."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read {path}: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            location = f"{path}, line {number}"
            yield location, _parse_row(line, location)


def _parse_row(line: str, location: str) -> dict[str, JsonValue]:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # fails for a lone surrogate, which cannot be written
    except (ValueError, RecursionError) as error:
        raise UserError(f"{location} is not JSON: {error}.", "Each line must be a JSON object.") from error
    if not isinstance(row, dict) or not {"question", "answer"} <= row.keys():
        raise UserError(
            f"{location} has no question and answer.", 'Each line must be {"question": …, "answer": …}.'
        )
    return row


def split_halves(examples: Sequence[Example], seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split examples into two halves (the second may have one more), each in the given order.

    The hash of seed and id decides, so that the split does not depend on a random generator.
    """

    def rank(example: Example) -> str:
        return hashlib.sha256(f"{seed}:{example.id}".encode()).hexdigest()

    first = {example.id for example in sorted(examples, key=rank)[: len(examples) // 2]}
    return (
        tuple(example for example in examples if example.id in first),
        tuple(example for example in examples if example.id not in first),
    )


# Whether the data is here, without a download

_PROBING: ContextVar[bool] = ContextVar("probing", default=False)


class _ProbedData(Exception):
    """Ends `load` when it asks for its first file."""

    def __init__(self, here: bool) -> None:
        super().__init__()
        self.here = here


def probe_data(load: Callable[[Path | None], Splits]) -> bool:
    """Return whether a task's own data is on this machine. Nothing is downloaded.

    `load` runs until it first asks for a file of the hub or for an archive.
    """
    token = _PROBING.set(True)
    try:
        load(None)
    except _ProbedData as probed:
        return probed.here
    finally:
        _PROBING.reset(token)
    return True


# Official data sets on the hub, at pinned revisions

INSTALL_HINT = (
    "Install it: pip install 'agent2rl[hub]'. Or pass a directory with the official files: --data-dir DIR."
)
NETWORK_HINT = (
    "Check the network and HF_ENDPOINT, or pass a directory with the official files: --data-dir DIR."
)


def read_parquet_rows(dataset: str, revision: str, file: str, columns: Sequence[str]) -> list[Row]:
    """Return the rows of one file of a data set, each with its location."""
    parquet = _import_module("pyarrow.parquet", dataset)
    path = download_file(dataset, revision, file)
    try:
        table = parquet.read_table(path, columns=list(columns))
    except Exception as error:  # pyarrow has errors of its own
        raise ExternalServiceError(
            f"Cannot read {file} of {dataset} from the hub: {error}", NETWORK_HINT
        ) from error
    return [(f"{dataset}, {file}, row {number}", row) for number, row in enumerate(table.to_pylist())]


def download_file(dataset: str, revision: str, file: str) -> Path:
    """Download one file of a data set, or find it in the hub's cache."""
    hub = _import_module("huggingface_hub", dataset)
    if _PROBING.get():
        cached = hub.try_to_load_from_cache(dataset, file, repo_type="dataset", revision=revision)
        raise _ProbedData(isinstance(cached, str))
    try:
        return Path(hub.hf_hub_download(dataset, file, repo_type="dataset", revision=revision))
    except Exception as error:  # the hub and its HTTP client each have errors of their own
        if type(error).__name__ == "LocalEntryNotFoundError":
            raise ExternalServiceError(
                f"The hub cannot be reached, and its cache does not have {dataset}.", NETWORK_HINT
            ) from error
        raise ExternalServiceError(
            f"Cannot download {file} of {dataset} from the hub: {error}", NETWORK_HINT
        ) from error


def _import_module(module: str, dataset: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{dataset} comes from the hub, but {error.name} is not installed.", INSTALL_HINT
        ) from error


# Released archives, downloaded and unpacked once

DOWNLOAD_TIMEOUT_SECONDS = 60.0
"""Longest time without any data."""
TELL_BYTES = 20 << 20
PARTIAL_DOWNLOAD, ABANDONED_SECONDS = "download-", 86400.0


def fetch_archive(url: str, home: Path, folder: str, wanted: str) -> Path:
    """Return a folder of an archive, unpacked below `home` with the files that match `wanted`.

    Downloads the archive if the folder does not exist yet.
    """
    target = home / folder
    if _PROBING.get():
        raise _ProbedData(target.is_dir())
    if target.is_dir():
        logger.debug("Found %s", target)
        return target
    home.mkdir(parents=True, exist_ok=True)
    _remove_abandoned_downloads(home)
    with tempfile.TemporaryDirectory(prefix=PARTIAL_DOWNLOAD, dir=home) as temporary:
        archive = Path(temporary) / "archive.zip"
        _download_archive(url, archive)
        _unpack_archive(archive, Path(temporary), folder, wanted, url)
        try:
            (Path(temporary) / folder).rename(target)
        except OSError:
            if not target.is_dir():  # if it exists now, another process was faster
                raise
    return target


def _remove_abandoned_downloads(home: Path) -> None:
    """Remove what killed processes left. Younger ones may belong to a process that is at work."""
    for path in home.glob(f"{PARTIAL_DOWNLOAD}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _download_archive(url: str, archive: Path) -> None:
    # Only here: every grading child loads this module, and httpx would be a fifth of its time to start.
    import httpx

    size, reported = 0, 0
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=DOWNLOAD_TIMEOUT_SECONDS) as answer,
            archive.open("wb") as file,
        ):
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                size += file.write(piece)
                if size - reported >= TELL_BYTES:
                    reported = size
                    print(f"{size >> 20} MiB of {url}", file=sys.stderr, flush=True)
    except (httpx.HTTPError, OSError) as error:
        raise MachineError(
            f"Cannot download {url}: {type(error).__name__}: {error}.",
            "Download and unpack it on a machine with a network, and pass the folder with --data-dir.",
        ) from error


def _unpack_archive(archive: Path, target: Path, folder: str, wanted: str, url: str) -> None:
    try:
        with zipfile.ZipFile(archive) as members:
            for name in members.namelist():
                path = PurePosixPath(name)
                if path.parts[:1] == (folder,) and ".." not in path.parts and path.match(wanted):
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    with members.open(name) as source, (target / path).open("wb") as file:
                        shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        raise MachineError(f"Cannot unpack {url}: {error}.", "Try again.") from error
    if not (target / folder).is_dir():
        raise MachineError(f"The archive {url} has no folder {folder!r}.", "Pass the data with --data-dir.")


# Prompt files

PROMPT_FILE_FORMAT = "A prompt file is TOML with the texts `chat` and `plain`, or one of them."


def read_prompts(path: Path) -> PromptTemplates:
    """Read a prompt file, of a task or of a user."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        prompts = PromptTemplates.model_validate({"name": path.stem, **values})
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.", PROMPT_FILE_FORMAT) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}.", PROMPT_FILE_FORMAT
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}.", PROMPT_FILE_FORMAT) from error
    if prompts.chat is None and prompts.plain is None:
        raise UserError(f"{path} has no prompt.", PROMPT_FILE_FORMAT)
    return prompts
