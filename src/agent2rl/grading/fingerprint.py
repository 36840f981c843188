"""Fingerprints: small files that allow a model to be recognised without its weights.

A file is one line with the name of the format, the length of a header as eight bytes, the header as JSON, and
numbers in 32 bits: for each matrix its sketch and its sorted norms (`weight_sketch`). A file may come from
anybody, so its size and its header are limited, and every number is checked. Nothing in it is executed.
"""

import hashlib
import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from agent2rl.core.errors import GradingError, Refusal, UserError
from agent2rl.core.records import Record
from agent2rl.grading.tensor_comparison import READABLE, Floats
from agent2rl.grading.untrusted_model_files import (
    DTYPE_BYTES,
    ELEMENTS,
    RANK,
    TENSORS,
    Tensor,
    format_value,
    parse_object,
    read_tensors,
    weights_sha256,
)
from agent2rl.grading.weight_sketch import (
    LENGTHS,
    NORMS,
    MatrixSketch,
    SortedNorms,
    find_input_norm,
    is_large_matrix,
    list_sketchable,
    sketch_matrix,
)
from agent2rl.record.files import canonical_json

SUFFIX = ".fingerprint"
MAGIC = b"agent2rl fingerprint 1\n"
LENGTH_BYTES = 8
MOST_BYTES = 5_000_000
"""Largest file that is written or read."""
MOST_HEADER_BYTES = 2_000_000
HEADER_BYTES_PER_MATRIX = 60
"""Of the header, without the matrix's name."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+-]{0,79}")
MOST_WORKERS = 8
MAKE_HINT = "Make it again with `agent2rl fingerprint MODEL`."


class MatrixEntry(Record):
    """One matrix of a fingerprint's header."""

    name: Annotated[str, Field(min_length=1, max_length=300)]
    dtype: str
    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=RANK)]


class FingerprintHeader(Record):
    name: str
    """What reports call the model."""
    weights_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    sketch_length: int
    matrices: Annotated[tuple[MatrixEntry, ...], Field(min_length=1, max_length=TENSORS)]


@dataclass(frozen=True)
class Fingerprint:
    header: FingerprintHeader
    matrices: Mapping[str, MatrixSketch]
    sha256: str = ""
    """Of the file; empty if it was not read from one."""

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def asset_name(self) -> str:
        """Its name among the inputs of a run."""
        return f"sibling {self.name}"

    @cached_property
    def dtypes(self) -> dict[str, str]:
        return {entry.name: entry.dtype for entry in self.header.matrices}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {entry.name: entry.shape for entry in self.header.matrices}


def make_fingerprint(
    directory: Path,
    name: str,
    tell: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Fingerprint:
    """Sketch every matrix of a model directory."""
    require_valid_name(name)
    try:
        tensors = read_tensors(directory)
        digest = weights_sha256(directory)
    except (Refusal, OSError) as error:
        raise UserError(
            f"The weights in {directory} cannot be read: {error}", "Name a model with safetensors weights."
        ) from error
    names = list(list_sketchable(tensors))
    if not names:
        raise UserError(f"{directory} has no matrix that is large enough to sketch.")
    length = choose_sketch_length(names)
    matrices = _sketch_matrices(tensors, names, length, tell, stop or threading.Event())
    entries = tuple(
        MatrixEntry(name=each, dtype=tensors[each].dtype, shape=tensors[each].shape) for each in names
    )
    header = FingerprintHeader(name=name, weights_sha256=digest, sketch_length=length, matrices=entries)
    return Fingerprint(header, matrices)


def choose_sketch_length(names: list[str]) -> int:
    """Return the longest sketch with which a fingerprint of these matrices stays small enough."""
    for length in LENGTHS:
        if estimate_bytes(names, length) <= MOST_BYTES:
            return length
    raise UserError(
        f"{len(names):,} matrices are too many for a fingerprint of {MOST_BYTES:,} bytes.",
        "Fingerprints of models with so many experts are not supported.",
    )


def estimate_bytes(names: list[str], length: int) -> int:
    """Return an upper limit for the size of a fingerprint."""
    header = sum(len(name.encode()) + HEADER_BYTES_PER_MATRIX for name in names) + 400
    return len(MAGIC) + LENGTH_BYTES + header + 4 * (length + 2 * NORMS) * len(names)


def write_fingerprint(fingerprint: Fingerprint, path: Path) -> int:
    """Write a fingerprint and return its size in bytes."""
    data = encode_fingerprint(fingerprint)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    # Renamed when it is complete, so that nobody reads half a fingerprint.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        raise UserError(
            f"Cannot write {path}: {error.strerror}.", "Choose another place with --output."
        ) from error
    return len(data)


def encode_fingerprint(fingerprint: Fingerprint) -> bytes:
    header = canonical_json(fingerprint.header.model_dump(mode="json")).encode()
    rows = [
        np.concatenate([each.sketch, each.norms.rows, each.norms.columns])
        for each in (fingerprint.matrices[entry.name] for entry in fingerprint.header.matrices)
    ]
    numbers = np.stack(rows).astype("<f4").tobytes()
    return MAGIC + len(header).to_bytes(LENGTH_BYTES, "little") + header + numbers


def read_fingerprint(path: Path) -> Fingerprint:
    """Read a fingerprint, or refuse it with the reason."""
    try:
        if not path.is_file():
            raise _refuse(path, "there is no such file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise _refuse(path, f"it cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise _refuse(path, f"it has more than {MOST_BYTES:,} bytes")
    header, numbers = _split_file(path, data)
    return Fingerprint(header, _read_matrices(path, header, numbers), hashlib.sha256(data).hexdigest())


def require_valid_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise UserError(
            f"{format_value(name)} cannot be the name of a fingerprint.",
            "Use letters, digits, spaces and ._@+- only, at most 80. --name sets it.",
        )


def _sketch_matrices(
    tensors: Mapping[str, Tensor],
    names: list[str],
    length: int,
    tell: Callable[[str], None],
    stop: threading.Event,
) -> dict[str, MatrixSketch]:
    total, done = sum(tensors[name].parameters for name in names), 0

    def sketch(name: str) -> MatrixSketch:
        if stop.is_set():
            raise GradingError("The fingerprint was stopped.")
        return sketch_matrix(name, tensors[name], length, find_input_norm(name, tensors))

    sketches: dict[str, MatrixSketch] = {}
    with ThreadPoolExecutor(min(MOST_WORKERS, len(os.sched_getaffinity(0))), "fingerprint") as pool:
        try:
            for name, found in zip(names, pool.map(sketch, names), strict=True):
                if not np.isfinite(_join_numbers(found)).all():
                    raise UserError(f"{format_value(name)} holds NaN, infinity, or too large values.")
                sketches[name] = found
                done += tensors[name].parameters
                tell(f"{done / total:.0%} of {total / 1e6:,.1f}M values")
        except BaseException:
            # Else the pool would wait for the largest matrices before the error is seen.
            stop.set()
            raise
    return sketches


def _join_numbers(matrix: MatrixSketch) -> Floats:
    return np.concatenate([matrix.sketch, matrix.norms.rows, matrix.norms.columns])


def _split_file(path: Path, data: bytes) -> tuple[FingerprintHeader, bytes]:
    if not data.startswith(MAGIC):
        raise _refuse(path, "it does not begin as fingerprints do")
    begin = len(MAGIC) + LENGTH_BYTES
    length = int.from_bytes(data[len(MAGIC) : begin], "little")
    if length > min(MOST_HEADER_BYTES, len(data) - begin):
        raise _refuse(path, f"its header is said to have {length:,} bytes")
    try:
        header = FingerprintHeader.model_validate(parse_object(data[begin : begin + length], "The header"))
    except Refusal as error:
        raise _refuse(path, error.message.removesuffix(".")) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _refuse(path, f"{format_value(where)} of its header: {first['msg']}") from None
    _check_header(path, header)
    return header, data[begin + length :]


def _check_header(path: Path, header: FingerprintHeader) -> None:
    if not NAME.fullmatch(header.name):
        raise _refuse(path, f"it has the impossible name {format_value(header.name)}")
    if header.sketch_length not in LENGTHS:
        raise _refuse(path, f"its sketches have {header.sketch_length} numbers")
    if len({entry.name for entry in header.matrices}) < len(header.matrices):
        raise _refuse(path, "it has two matrices of the same name")
    for entry in header.matrices:
        readable = entry.dtype in READABLE and entry.dtype in DTYPE_BYTES
        if not readable or math.prod(entry.shape) > ELEMENTS or not is_large_matrix(entry.shape):
            raise _refuse(path, f"{format_value(entry.name)} has an impossible dtype or shape")


def _read_matrices(path: Path, header: FingerprintHeader, numbers: bytes) -> dict[str, MatrixSketch]:
    count, length = len(header.matrices), header.sketch_length
    width = length + 2 * NORMS
    if len(numbers) != 4 * width * count:
        raise _refuse(path, f"it has {len(numbers):,} bytes of numbers; {4 * width * count:,} are needed")
    with np.errstate(all="ignore"):
        table = np.frombuffer(numbers, "<f4").reshape(count, width).astype(np.float64)
    # The limit lets squares of the numbers be finite in 32 bits, too.
    if not np.isfinite(table).all() or np.abs(table).max() > np.sqrt(np.finfo(np.float32).max):
        raise _refuse(path, "its numbers are not finite, or too large")
    if (table[:, length:] < 0).any():
        raise _refuse(path, "it has negative lengths")
    return {
        entry.name: MatrixSketch(row[:length], SortedNorms(*np.split(row[length:], 2)))
        for entry, row in zip(header.matrices, table, strict=True)
    }


def _refuse(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is not a usable fingerprint: {reason}.", MAKE_HINT)
