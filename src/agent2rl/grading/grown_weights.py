"""Writes the base model's weights with rows that a submission added for its new tokens.

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


def read_added_rows(base: Tensor, grown: Tensor) -> bytes:
    """The rows that a tensor has beyond the base model's, in the base model's precision."""
    values_per_row = math.prod(grown.shape[1:])
    skip = base.shape[0] * values_per_row * DTYPE_BYTES[grown.dtype]
    raw = b"".join(read_chunks(grown, skip))
    return raw if grown.dtype == base.dtype else _encode(_decode(raw, grown.dtype), base.dtype)


def write_grown_model(
    path: Path, base: Mapping[str, Tensor], added_rows: Mapping[str, bytes]
) -> dict[str, Tensor]:
    """One safetensors file of the base model's tensors, some of them with further rows."""
    written: dict[str, Tensor] = {}
    end = 0
    for name, tensor in base.items():
        more = added_rows.get(name, b"")
        size = tensor.offsets[1] - tensor.offsets[0] + len(more)
        row_bytes = math.prod(tensor.shape[1:]) * DTYPE_BYTES[tensor.dtype]
        shape = (tensor.shape[0] + len(more) // row_bytes, *tensor.shape[1:]) if more else tensor.shape
        written[name] = Tensor(tensor.dtype, shape, path, (end, end + size))
        end += size
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            **{
                name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.offsets}
                for name, tensor in written.items()
            },
        }
    ).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, tensor in base.items():
            file.writelines(read_chunks(tensor))
            file.write(added_rows.get(name, b""))
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
