"""Read JSON and safetensors files that an agent wrote, within strict limits.

JSON must be one object with unique keys, no NaN, no very long numbers and no lone surrogates, and is
bounded in size, depth and number of values. Safetensors headers are validated here and not by the
safetensors library, which accepts more (any number of tensors, any rank, a header of 100 MB, repeated keys)
and maps the whole file. The library accepts everything that is accepted here; a test checks that. Tensor
values are never interpreted.
"""

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from agent2rl.core.errors import MachineError, Refusal

# Untrusted JSON, and its safe display in messages.

MIB = 2**20
DEPTH = 64
DIGITS = 40
"""Maximum digits of a number; tokenizers write "no limit" as 10^30."""
VALUES = 4_000_000
"""Maximum number of values; a parsed value takes up to twenty times the memory of its text."""


def read_object(path: Path, most_bytes: int) -> dict[str, Any]:
    return parse_object(read_bytes(path, most_bytes), path.name)


def read_bytes(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise Refusal(
            f"{path.name} has {path.stat().st_size:,} bytes; the limit is {most_bytes:,}.",
            "Save it again with save_pretrained.",
        )
    return data


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object, or refuse it with the reason."""
    try:
        # Counted in the text: afterwards the memory would be full already.
        if sum(map(data.count, (b",", b"[", b"{"))) > VALUES:
            raise ValueError(f"more than {VALUES:,} values")
        value = json.loads(
            data.decode(),
            object_pairs_hook=_build_object,
            parse_int=_parse_integer,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
        )
        if not isinstance(value, dict):
            raise ValueError("not an object")
        if sum(1 for _ in _iterate_levels(value)) > DEPTH:
            raise ValueError(f"nested more than {DEPTH} deep")
        # Only escapes can make a lone surrogate, which no text can hold.
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _malformed_refusal(name, f"nested more than {DEPTH} deep") from None
    except UnicodeError:
        raise _malformed_refusal(name, "not UTF-8 text") from None
    except ValueError as error:
        raise _malformed_refusal(name, str(error)) from None
    return value


def format_value(value: object) -> str:
    """Format untrusted content for a message: printable and short."""
    text = repr(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def format_values(values: Iterable[object]) -> str:
    """Format the first few values and the number of the others."""
    items = list(values)
    rest = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return ", ".join(map(format_value, items[:5])) + rest


def _iterate_levels(value: object) -> Iterator[list[Any]]:
    """Yield all values by depth, without recursion."""
    level: list[Any] = [value]
    while level:
        yield level
        level = [child for item in level for child in _list_children(item)]


def _list_children(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"{format_values(key for key in counts if counts[key] > 1)} occurs more than once")
    return value


def _parse_integer(text: str) -> int:
    # Parsers disagree whether "-0" is an integer.
    if text == "-0" or len(text) > DIGITS:
        raise ValueError(f"the number {format_value(text)} is out of range")
    return int(text)


def _parse_float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {format_value(text)} is out of range")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


def _malformed_refusal(name: str, reason: str) -> Refusal:
    return Refusal(
        f"{name} is not valid JSON: {reason}.",
        "Save it again with save_pretrained, or copy the base model's.",
    )


# Safetensors files: the list of tensors, and one digest of all.

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEADER_BYTES = 16 * MIB
TENSORS = 20_000
RANK = 8
ELEMENTS = 2**48
"""Maximum elements of a tensor, counting empty dimensions as one, so that no product overflows."""
CHUNK = 4 * MIB
SHARD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,243}\.safetensors")
DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}
SAVE_HINT = "Save the weights with model.save_pretrained(path, safe_serialization=True)."


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offsets: tuple[int, int]
    """Begin and end of its bytes in the file."""

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Read every tensor of a model by name, from one file or from an index and its shards."""
    single, index = directory / SINGLE, directory / INDEX
    if single.is_file() and index.is_file():
        raise Refusal(f"There are both {SINGLE} and {INDEX}.", f"Remove the outdated one. {SAVE_HINT}")
    if single.is_file():
        return read_tensor_file(single)
    if index.is_file():
        return _read_shards(directory, index)
    raise Refusal(f"There is neither {SINGLE} nor {INDEX}.", SAVE_HINT)


def weights_sha256(directory: Path) -> str:
    """Return the digest of all names, dtypes, shapes and values, independent of order and sharding."""
    digest = hashlib.sha256()
    for name, tensor in sorted(read_tensors(directory).items()):
        digest.update(json.dumps([name, tensor.dtype, tensor.shape]).encode() + b"\n")
        for chunk in read_chunks(tensor):
            digest.update(chunk)
    return digest.hexdigest()


def tensor_sha256(tensor: Tensor) -> str:
    """Return the digest of one tensor's values."""
    digest = hashlib.sha256()
    for chunk in read_chunks(tensor):
        digest.update(chunk)
    return digest.hexdigest()


def read_chunks(tensor: Tensor) -> Iterator[bytes]:
    """Yield the bytes of a tensor, a few megabytes at a time."""
    begin, end = tensor.offsets
    with tensor.file.open("rb") as file:
        file.seek(begin)
        while begin < end:
            chunk = file.read(min(CHUNK, end - begin))
            if not chunk:
                raise MachineError(f"{tensor.file} became shorter while it was read.")
            begin += len(chunk)
            yield chunk


def _read_shards(directory: Path, index: Path) -> dict[str, Tensor]:
    placed = read_object(index, HEADER_BYTES).get("weight_map")
    if not isinstance(placed, dict) or not 1 <= len(placed) <= TENSORS:
        raise Refusal(f"{INDEX} needs a weight_map of 1 to {TENSORS:,} tensors.", SAVE_HINT)
    names: dict[str, set[str]] = {}
    for name, file in placed.items():
        if not isinstance(file, str) or not SHARD_NAME.fullmatch(file):
            raise Refusal(
                f"{INDEX} places {format_value(name)} in {format_value(file)}, which is not a shard's name.",
                SAVE_HINT,
            )
        names.setdefault(file, set()).add(name)
    missing = sorted(file for file in names if not (directory / file).is_file())
    if missing:
        raise Refusal(f"{INDEX} names missing files: {format_values(missing)}.", SAVE_HINT)
    tensors: dict[str, Tensor] = {}
    for file in sorted(names):
        shard = read_tensor_file(directory / file)
        # A tensor in two shards could be checked in one and read by the engine from the other.
        if different := shard.keys() ^ names[file]:
            raise Refusal(f"{INDEX} and {file} disagree about {format_values(sorted(different))}.", SAVE_HINT)
        tensors |= shard
    return tensors


def read_tensor_file(path: Path) -> dict[str, Tensor]:
    """Read every tensor of one file. Each byte must belong to exactly one tensor."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _layout_refusal(path, "it is cut off before the end of its header")
        if length > HEADER_BYTES:
            raise _layout_refusal(path, f"its header has {length:,} bytes; the limit is {HEADER_BYTES:,}")
        text = file.read(length)
    # The library refuses a header that begins with anything else, such as a space.
    if not text.startswith(b"{"):
        raise _layout_refusal(path, "its header is not a JSON object")
    header = parse_object(text, f"The header of {path.name}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _layout_refusal(path, "its __metadata__ does not map text to text")
    if not 1 <= len(header) <= TENSORS:
        raise _layout_refusal(path, f"it has {len(header):,} tensors; 1 to {TENSORS:,} are accepted")
    tensors = {name: _parse_tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_layout(path, tensors, 8 + length, size)
    return tensors


def _parse_tensor(path: Path, name: str, entry: Any, start: int) -> Tensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _layout_refusal(
            path, f"{format_value(name)} needs dtype, shape and data_offsets, and nothing else"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise _layout_refusal(path, f"{format_value(name)} has the unknown dtype {format_value(dtype)}")
    if not _is_size_list(shape) or len(shape) > RANK:
        raise _layout_refusal(path, f"{format_value(name)} has the impossible shape {format_value(shape)}")
    if not _is_size_list(offsets) or len(offsets) != 2:
        raise _layout_refusal(
            path, f"{format_value(name)} has the impossible data_offsets {format_value(offsets)}"
        )
    if math.prod(max(1, dimension) for dimension in shape) > ELEMENTS:
        raise _layout_refusal(
            path, f"{format_value(name)} has the shape {format_value(shape)}: more than any file can hold"
        )
    if offsets[1] - offsets[0] != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise _layout_refusal(
            path, f"{format_value(name)} has data_offsets that do not fit its shape {format_value(shape)}"
        )
    return Tensor(dtype, tuple(shape), path, (start + offsets[0], start + offsets[1]))


def _is_size_list(value: object) -> bool:
    """Return whether the value is a list of natural numbers, without booleans."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, tensors: Mapping[str, Tensor], start: int, size: int) -> None:
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offsets):
        if tensor.offsets[0] != start:
            raise _layout_refusal(
                path, f"{format_value(name)} overlaps another tensor or leaves a hole before it"
            )
        start = tensor.offsets[1]
    if start != size:
        raise _layout_refusal(path, f"its tensors end at byte {start:,} of {size:,}")


def _layout_refusal(path: Path, reason: str) -> Refusal:
    return Refusal(f"{path.name} is not a valid safetensors file: {reason}.", SAVE_HINT)
