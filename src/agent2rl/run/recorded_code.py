"""The recorded code of a submission, as an agent that runs it again without an LLM.

The code is untrusted: it is only written to a folder that the sandbox shows read-only, and runs inside. What
could be weights is withheld, because code that brings its weights along would reproduce without training.
"""

import json
import math
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent2rl.core.agent import Brief
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import Submission
from agent2rl.core.records import Asset, Isolation
from agent2rl.core.reproduction import WORKSPACE_MARK, RecordedStep
from agent2rl.core.sandbox import Command, Mount
from agent2rl.record.revisions import FULL
from agent2rl.record.untrusted_files import sanitize_line
from agent2rl.record.workspace_reader import PLACEHOLDER, SnapshotFile

AGENT_FOLDER = "agent"
NOT_COMPARED = ("sibling ", "also ")
"""Begin the names of assets that training does not depend on: fingerprints, and the regression panel."""
REPLAY_FOLDER = ".replay"
"""Hidden, so that it is not recorded as code."""
LINK = 0o120000

MODEL_SUFFIXES = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".npz", ".npy", ".pkl", ".pickle",
    ".h5", ".onnx", ".msgpack", ".tflite", ".joblib", ".zip", ".tar", ".gz", ".xz", ".bz2", ".zst", ".7z",
)  # fmt: skip
"""Models, and archives, which may hold one."""
CHUNK_CHARACTERS = 4096
DENSE_SHARE = 0.6
"""Compressed share of a chunk from which on it is data. Code and prose stay below 0.5, base64 has 0.76."""
NUMBER_SHARE, NUMBER_DENSITY = 0.6, 0.15
"""Share of what numbers are written with, and compressed share, from which on a chunk is numbers."""
RANDOM_SHARE = 1.03
"""Compressed size relative to what the frequencies of the characters alone allow, from which on a chunk
repeats nothing, in whatever alphabet it is written. Code and prose stay below 1."""
NUMBER_CHARACTERS = frozenset(b"0123456789.,+-eE[]()")
SMALL_CHARACTERS, SMALL_DENSE_SHARE = 1024, 0.7
"""Shorter files compress badly, so they are judged together first."""
MOST_DATA_CHARACTERS = 16_384
"""Data in all files together, up to which it is not withheld."""
MOST_CODE_BYTES = 512 << 10
"""Compressed size of all code together: about 2 MB of source. More is room for weights."""


@dataclass(frozen=True)
class SortedFiles:
    """The recorded files: those that the reproduction gets, and the others with the reason."""

    given: tuple[SnapshotFile, ...]
    withheld: dict[str, str]


def sort_files(files: Iterable[SnapshotFile]) -> SortedFiles:
    """Withhold what could be weights, and what is not in the record."""
    withheld: dict[str, str] = {}
    given: list[SnapshotFile] = []
    for file in files:
        if reason := _find_reason(file):
            withheld[format_path(file)] = reason
        else:
            given.append(file)
    if dense := find_data_files(given):
        withheld |= dict.fromkeys(dense, "it holds data that could be weights")
    kept = tuple(file for file in given if format_path(file) not in withheld)
    return SortedFiles(kept, withheld)


def find_data_files(files: Sequence[SnapshotFile]) -> list[str]:
    """Return the files that hold data, if there is enough of it together to be weights."""
    large = [file for file in files if len(file.content) >= SMALL_CHARACTERS]
    small = [file for file in files if len(file.content) < SMALL_CHARACTERS]
    sizes = {format_path(file): count_data_characters(file.content) for file in large}
    small_size = count_data_characters(b"".join(file.content for file in small))
    if sum(sizes.values()) + small_size <= MOST_DATA_CHARACTERS:
        return []
    dense = [file for file in small if small_size and measure_density(file.content) > SMALL_DENSE_SHARE]
    return [*(path for path, size in sizes.items() if size), *map(format_path, dense)]


def count_recorded_data(files: Sequence[SnapshotFile], words: Iterable[str]) -> int:
    """Return how much of all that a reproduction gets is data: files, their names, and words of commands."""
    large = [file.content for file in files if len(file.content) >= SMALL_CHARACTERS]
    small = b"".join(file.content for file in files if len(file.content) < SMALL_CHARACTERS)
    names = b"\n".join(b"/".join(file.path) for file in files)
    texts = (*large, small, names, "\0".join(words).encode())
    return sum(map(count_data_characters, texts))


def measure_code_bytes(files: Sequence[SnapshotFile]) -> int:
    """Return the compressed size of all files, each content once, and of their names."""
    names = b"\n".join(b"/".join(file.path) for file in files)
    return sum(len(zlib.compress(text, 1)) for text in (names, *{file.content for file in files}))


def _find_reason(file: SnapshotFile) -> str | None:
    name = format_path(file).lower()
    if file.mode == LINK:
        return "it is a link"
    if file.content.startswith(PLACEHOLDER) or file.content == FULL:
        is_model = name.endswith(MODEL_SUFFIXES)
        return "it is a model or an archive" if is_model else "it is binary or large and was not recorded"
    return "it is a model or an archive" if name.endswith(MODEL_SUFFIXES) else None


def count_data_characters(content: bytes) -> int:
    """Return how much of a text is data: chunks that hardly compress, and lists of numbers."""
    chunks = (content[at : at + CHUNK_CHARACTERS] for at in range(0, len(content), CHUNK_CHARACTERS))
    return sum(len(chunk) for chunk in chunks if _is_data(chunk))


def _is_data(chunk: bytes) -> bool:
    if len(chunk) < SMALL_CHARACTERS:
        return False
    density = measure_density(chunk)
    text = b"".join(chunk.split())
    numbers = sum(each in NUMBER_CHARACTERS for each in text) / max(1, len(text))
    is_special = numbers > NUMBER_SHARE or density > RANDOM_SHARE * _measure_entropy(chunk)
    return density > DENSE_SHARE or (is_special and density > NUMBER_DENSITY)


def _measure_entropy(content: bytes) -> float:
    """Return the smallest share that a code for single characters compresses a text to."""
    size = len(content)
    return sum(-count / size * math.log2(count / size) for count in Counter(content).values()) / 8


def measure_density(content: bytes) -> float:
    """Return the compressed share of a text."""
    return len(zlib.compress(content, 9)) / max(1, len(content))


def format_path(file: SnapshotFile) -> str:
    """Return the path for people, as one line."""
    return sanitize_line("/".join(map(os.fsdecode, file.path)), 300)


def list_compared_assets(assets: Sequence[Asset]) -> list[Asset]:
    """Return the inputs that a run must share with its reproduction."""
    return [each for each in assets if not each.name.startswith(NOT_COMPARED)]


# The agent


Choice = Callable[[Sequence[Submission], PurePosixPath], Submission | None]
"""Chooses among a run's submissions; the path is where its agent sees the workspace."""


@dataclass(frozen=True)
class CodeReproduction:
    """How a run executes recorded code in place of an agent."""

    agent: "RecordedCode"
    assets: tuple[Asset, ...]
    """The inputs of the original run, which this one must have too."""
    choose: Choice
    """Chooses the submission that counts."""
    heldout: bool
    """Whether that one is graded on the held-out split."""
    hidden: tuple[Path, ...]
    """Where the original run and its siblings are, which the sandbox must not show."""

    @staticmethod
    def require_isolation(isolation: Isolation) -> None:
        if not isolation.isolates:
            raise UserError(
                f"The sandbox {isolation.sandbox} isolates nothing: recorded code could copy the submitted "
                "weights.",
                "Name another one: --sandbox bubblewrap.",
            )

    def require_same_assets(self, assets: Sequence[Asset]) -> None:
        before, now = list_compared_assets(self.assets), list_compared_assets(assets)
        sha256 = {asset.name: asset.sha256 for asset in now}
        changed = [each.name for each in before if sha256.get(each.name) != each.sha256]
        if changed or len(now) != len(before):
            names = ", ".join(changed) or "there are others"
            raise UserError(
                f"The inputs are not those of the original run: {names}.",
                "Restore them: `agent2rl show RUN --json` has their hashes.",
            )


@dataclass(frozen=True)
class RecordedCode:
    """Runs recorded steps in order, then submits what they trained."""

    folder: Path
    """Shown read-only as `agent/` in the workspace."""
    secrets: tuple[str, ...] = ()

    def command(self, brief: Brief) -> Command:
        program = brief.workspace / AGENT_FOLDER / REPLAY_FOLDER / "replay.py"
        return Command(("python", str(program)), brief.environment, (Mount(self.folder, AGENT_FOLDER),))


def write_recorded_code(
    folder: Path, files: Sequence[SnapshotFile], steps: Sequence[RecordedStep], submitted: str, count: int
) -> RecordedCode:
    """Write the code, the steps and the program that runs them into a folder.

    `submitted` is the path of the model, and `count` how many submissions of this path there were.
    """
    replay = folder / REPLAY_FOLDER
    (replay / "code").mkdir(parents=True)
    try:
        for file in files:
            in_agent = file.path[0] == AGENT_FOLDER.encode()
            if not in_agent:
                _write_file(replay / "code", file.path, file)
            elif file.path[1:2] != (REPLAY_FOLDER.encode(),):  # ours, and hidden, so none was recorded
                _write_file(folder, file.path[1:], file)
    except OSError as error:
        raise UserError(
            f"The recorded code cannot be written: {error.strerror}: {error.filename}."
        ) from error
    plan = {"steps": [step.model_dump() for step in steps], "submitted": submitted, "count": count}
    (replay / "plan.json").write_text(json.dumps({**plan, "mark": WORKSPACE_MARK}), encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("replay_program.py"), replay / "replay.py")
    return RecordedCode(folder)


def _write_file(folder: Path, place: Sequence[bytes], file: SnapshotFile) -> None:
    """Write a file of the code. Git refuses paths that lead outside, but this does not rely on it."""
    parts = [os.fsdecode(part) for part in place]
    if not parts or any(part in ("", ".", "..") or "/" in part for part in parts):
        return
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    path.chmod(file.mode & 0o777)


def read_texts(files: Iterable[SnapshotFile]) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file."""
    for file in files:
        yield "/".join(map(os.fsdecode, file.path)), file.content.decode(errors="replace")


def normalise_submitted_path(path: str, root: str) -> str:
    """Return a submitted path relative to the workspace, as the grading API takes it."""
    place = PurePosixPath(path)
    return str(place.relative_to(root) if place.is_absolute() and place.is_relative_to(root) else place)
