"""Reads JSON that an agent wrote, and shows what it wrote in messages, without being hurt by either.

Stricter than the standard: one object, each key once, no NaN, no number of very many digits, no half
characters, bounded in size, in depth and in the number of values. What it means is for its reader.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from agent2rl.core.errors import Refusal

MIB = 2**20
DEPTH = 64
DIGITS = 40
"""Tokenizers write "no limit" as ten to the thirtieth."""
VALUES = 4_000_000
"""A parsed value takes up to twenty times the memory of its text."""


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
    """The object that the text is, or a refusal that says why it is none."""
    try:
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
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _malformed_refusal(name, f"nested more than {DEPTH} deep") from None
    except UnicodeError:
        raise _malformed_refusal(name, "not UTF-8 text") from None
    except ValueError as error:
        raise _malformed_refusal(name, str(error)) from None
    return value


def collect_keys(value: object) -> set[str]:
    """Every key of a parsed JSON value, at any depth."""
    return {
        key for level in _iterate_levels(value) for item in level if isinstance(item, dict) for key in item
    }


def format_value(value: object) -> str:
    """Untrusted content as a message shows it: printable and short."""
    text = repr(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def format_values(values: Iterable[object]) -> str:
    """The first few, and how many more."""
    items = list(values)
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return ", ".join(map(format_value, items[:5])) + more


def _iterate_levels(value: object) -> Iterator[list[Any]]:
    """All values by depth, without recursion."""
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
        raise ValueError(f"{format_values(key for key in counts if counts[key] > 1)} is there more than once")
    return value


def _parse_integer(text: str) -> int:
    # "-0" is an integer to some parsers and not to others, which is a trap.
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
        f"{name} is not the JSON it should be: {reason}.",
        "Save it again with save_pretrained, or copy the base model's.",
    )
