"""Loads what tasks are made of: JSON-lines rows, hub files, release archives, prompt files.

Hub files have pinned revisions; an archive is downloaded and unpacked once. A prompt file is TOML:

    chat = "…"           for a model with a chat template
    plain = "…"          for one without, which continues the text
    [plain]              or one text for each kind of example
    pick_and_place_simple = "…"
    "" = "…"             for all others
"""

import hashlib
import importlib
import json
import shutil
import sys
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
from pydantic import JsonValue, ValidationError

from agent2rl.core.errors import MachineError, UserError, WorldError
from agent2rl.core.records import PromptTemplates
from agent2rl.core.task import Example

# Examples out of files: rows of questions and answers, and the fixed division of a test set.

Row = tuple[str, dict[str, JsonValue]]
"""Where a row stands (`FILE, line N`, for messages), and the row."""


def read_rows(path: Path) -> Iterator[Row]:
    """Each row of the file; every one has a question and an answer."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read {path}: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _parse_row(line, place)


def _parse_row(line: str, place: str) -> dict[str, JsonValue]:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # an escaped lone surrogate could not be written again
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON: {error}.", "Each line is one JSON object.") from error
    if not isinstance(row, dict) or not {"question", "answer"} <= row.keys():
        raise UserError(f"{place} has no question and answer.", 'Each line is {"question": …, "answer": …}.')
    return row


def split_halves(examples: Sequence[Example], seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Two parts of equal size (the second may have one more), each in the given order.

    By the hash of seed and id, so that the division depends on no generator's implementation.
    """

    def rank(example: Example) -> str:
        return hashlib.sha256(f"{seed}:{example.id}".encode()).hexdigest()

    first = {example.id for example in sorted(examples, key=rank)[: len(examples) // 2]}
    return (
        tuple(example for example in examples if example.id in first),
        tuple(example for example in examples if example.id not in first),
    )


# Official data sets out of the hub, at pinned revisions. What a row means is for the task.

HUB_HINT = "Install agent2rl[hub] and check the network, or name a directory that has the files: --data-dir."


def read_parquet_rows(dataset: str, revision: str, file: str, columns: Sequence[str]) -> list[Row]:
    """The rows of one file of a data set, each with where it stands."""
    parquet = _import_module("pyarrow.parquet", dataset)
    path = download_file(dataset, revision, file)
    try:
        table = parquet.read_table(path, columns=list(columns))
    except Exception as error:  # pyarrow has errors of its own
        raise WorldError(f"The hub's {file} of {dataset} cannot be read: {error}", HUB_HINT) from error
    return [(f"{dataset}, {file}, row {number}", row) for number, row in enumerate(table.to_pylist())]


def download_file(dataset: str, revision: str, file: str) -> Path:
    """One file of a data set."""
    hub = _import_module("huggingface_hub", dataset)
    try:
        return Path(hub.hf_hub_download(dataset, file, repo_type="dataset", revision=revision))
    except Exception as error:  # the hub and its HTTP client each have errors of their own
        raise WorldError(f"The hub did not give {dataset}'s {file}: {error}", HUB_HINT) from error


def _import_module(module: str, dataset: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{dataset} comes from the hub, and {error.name} is not installed.", HUB_HINT
        ) from error


# Downloads an archive that a project has released, and unpacks what is wanted of it, once.

DOWNLOAD_TIMEOUT_SECONDS = 60.0
"""Without a byte."""
TELL_BYTES = 20 << 20


def fetch_archive(url: str, home: Path, folder: str, wanted: str) -> Path:
    """The folder of an archive below `home`, with the files that match; downloaded where it is not there."""
    place = home / folder
    if place.is_dir():
        return place
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=home) as temporary:
        archive = Path(temporary) / "archive.zip"
        _download_archive(url, archive)
        _unpack_archive(archive, Path(temporary), folder, wanted, url)
        try:
            (Path(temporary) / folder).rename(place)
        except OSError:
            if not place.is_dir():  # somebody else was faster
                raise
    return place


def _download_archive(url: str, archive: Path) -> None:
    size, told = 0, 0
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=DOWNLOAD_TIMEOUT_SECONDS) as answer,
            archive.open("wb") as file,
        ):
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                size += file.write(piece)
                if size - told >= TELL_BYTES:
                    told = size
                    print(f"{size >> 20} MiB of {url}", file=sys.stderr, flush=True)
    except (httpx.HTTPError, OSError) as error:
        raise MachineError(
            f"Cannot download {url}: {type(error).__name__}: {error}.",
            "Download and unpack it where there is a network, and name the folder with --data-dir.",
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
        raise MachineError(f"What {url} gave cannot be unpacked: {error}.", "Try again.") from error
    if not (target / folder).is_dir():
        raise MachineError(f"The archive {url} has no folder {folder!r}.", "Name the data with --data-dir.")


# Reads a prompt file: a task's words for the model, its own or a user's.

PROMPT_FILE_FORMAT = "It is TOML with the texts `chat` and `plain`, or one of them."


def read_prompts(path: Path) -> PromptTemplates:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        found = PromptTemplates.model_validate({"name": path.stem, **values})
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.", PROMPT_FILE_FORMAT) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}.", PROMPT_FILE_FORMAT
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}.", PROMPT_FILE_FORMAT) from error
    if found.chat is None and found.plain is None:
        raise UserError(f"{path} holds no words for the model.", PROMPT_FILE_FORMAT)
    return found
