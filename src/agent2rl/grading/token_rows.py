"""Writes the base model's weights with a submission's rows for its added tokens.

Training is ablated with it: what those rows gain beside untouched weights is not counted as trained.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agent2rl.grading.weights import DTYPE_BYTES, Tensor, read_chunks

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
TokenRows = Mapping[str, Mapping[int, bytes]]
"""By tensor and row."""


def read_row(tensor: Tensor, row: int, dtype: str) -> bytes:
    """One row of a tensor, in the precision that is asked for."""
    size = row_bytes(tensor)
    with tensor.file.open("rb") as file:
        file.seek(tensor.offsets[0] + row * size)
        raw = file.read(size)
    return raw if tensor.dtype == dtype else _encode(_decode(raw, tensor.dtype), dtype)


def row_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape[1:]) * DTYPE_BYTES[tensor.dtype]


def write_rows(path: Path, base: Mapping[str, Tensor], rows: TokenRows) -> dict[str, Tensor]:
    """One safetensors file of the base model's tensors, with rows replaced in or added to some of them."""
    written: dict[str, Tensor] = {}
    end = 0
    for name, tensor in base.items():
        count = max([*(row + 1 for row in rows.get(name, ())), *tensor.shape[:1]], default=0)
        shape = (count, *tensor.shape[1:]) if tensor.shape else ()
        size = math.prod(shape) * DTYPE_BYTES[tensor.dtype]
        written[name] = Tensor(tensor.dtype, shape, path, (end, end + size))
        end += size
    entries = {
        name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.offsets}
        for name, tensor in written.items()
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    begin = 8 + len(header)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, tensor in base.items():
            file.seek(begin + written[name].offsets[0])
            file.writelines(read_chunks(tensor))
            for row, data in rows.get(name, {}).items():
                file.seek(begin + written[name].offsets[0] + row * row_bytes(tensor))
                file.write(data)
        file.truncate(begin + end)
    path.chmod(0o644)
    return written


def _decode(raw: bytes, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, NUMPY[dtype]).astype(np.float32)


def _encode(values: npt.NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "BF16":
        bits = values.view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to the nearest, and to even between two
        return (rounded >> 16).astype("<u2").tobytes()
    return values.astype(NUMPY[dtype]).tobytes()
