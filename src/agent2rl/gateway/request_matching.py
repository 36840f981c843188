"""How like two requests are, for a tape to find the one that is meant. See `replay`."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from agent2rl.core.llm import Wire
from agent2rl.gateway.routing import Kind

VOLATILE_TEXT = re.compile(r"/tmp/[\w./-]+|\b\w*\d[\w.:-]*")
"""What differs from run to run without meaning anything: temporary paths, and all that has a digit in it, as
ids, hashes, times and sizes have."""
SHAPE_KEYS = ("type", "role", "name")
"""Keys whose values belong to a request's shape."""
MAX_SHOWN_CHARACTERS = 80
Json = dict[str, Any]


@dataclass(frozen=True)
class RequestFingerprint:
    call: tuple[Wire, Kind, str, bool]
    tools: tuple[str, ...]
    said: tuple[str, ...]
    """What the driver has said so far, turn by turn."""
    body: Callable[[], Json] = field(repr=False)
    """Read anew where it is wanted: a tape's bodies together are large."""

    @classmethod
    def from_body(cls, call: tuple[Wire, Kind, str, bool], body: Callable[[], Json]) -> "RequestFingerprint":
        parsed = body()
        said = tuple(_hash_json(_mask_volatile(turn)) for turn in _extract_driver_turns(call[0], parsed))
        return cls(call, tuple(sorted(_extract_tool_names(parsed.get("tools")))), said, body)

    def matches_request(self, other: "RequestFingerprint") -> bool:
        return (self.call, self.tools, self.said) == (other.call, other.tools, other.said)

    def measure_distance(self, other: "RequestFingerprint") -> int:
        """0: equal, 1: but for what differs in every run, 2: in shape, 3: not even that."""
        mine, theirs = self.body(), other.body()
        if mine == theirs:
            return 0
        return (
            1
            if _mask_volatile(mine) == _mask_volatile(theirs)
            else 2
            if _strip_texts(mine) == _strip_texts(theirs)
            else 3
        )

    def measure_overlap(self, other: "RequestFingerprint") -> tuple[bool, bool, int]:
        """Where nothing fits, what comes nearest."""
        same = 0
        for mine, theirs in zip(self.said, other.said, strict=False):
            if mine != theirs:
                break
            same += 1
        apart = abs(len(self.said) - len(other.said))
        return self.call == other.call, self.tools == other.tools, same - apart

    def describe_mismatch(self, other: "RequestFingerprint") -> str:
        for name, mine, theirs in zip(
            ("wire format", "path", "model", "streaming"), self.call, other.call, strict=True
        ):
            if mine != theirs:
                return f"its {name} is {theirs!r}, not {mine!r}"
        if self.tools != other.tools:
            odd = sorted(set(self.tools) ^ set(other.tools))
            return f"one has other tools than the other ({', '.join(odd)[:MAX_SHOWN_CHARACTERS]})"
        if len(self.said) != len(other.said):
            return f"the driver had spoken {len(other.said)} times by then, and now {len(self.said)} times"
        return "the driver had said something else by then"


def describe_difference(recorded: Any, asked: Any, most: int = 3) -> str:
    """The first places where two values differ, but for what differs in every run."""
    found: list[str] = []
    left = [("", recorded, asked)]
    while left and len(found) < most:
        place, one, other = left.pop(0)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            names = list(dict.fromkeys([*one, *other]))
            left[:0] = [(f"{place}.{name}", one.get(name), other.get(name)) for name in names]
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            left[:0] = [(f"{place}.{at}", *pair) for at, pair in enumerate(zip(one, other, strict=True))]
        elif isinstance(one, list) and isinstance(other, list):
            found.append(f"{place.lstrip('.')} has {len(other)} items, not {len(one)}")
        elif _mask_volatile(one) != _mask_volatile(other):
            found.append(
                f"{place.lstrip('.')} is {_excerpt_difference(other, one)}, "
                f"not {_excerpt_difference(one, other)}"
            )
    return "; ".join(found)


def _extract_driver_turns(wire: Wire, body: Json) -> list[Any]:
    """What the driver said: its messages, and in the Responses format whatever the client did not bring."""
    listed = body.get({"gemini": "contents", "openai-responses": "input"}.get(wire, "messages"))
    turns = [turn for turn in listed if isinstance(turn, dict)] if isinstance(listed, list) else []
    if wire == "gemini":
        return [turn.get("parts") for turn in turns if turn.get("role") == "model"]
    if wire == "openai-responses":
        return [
            turn
            for turn in turns
            if turn.get("role") == "assistant"
            or (isinstance(turn.get("type"), str) and turn["type"].endswith(("_call", "reasoning")))
        ]
    return [
        {name: _strip_cache_control(turn.get(name)) for name in ("content", "tool_calls")}
        for turn in turns
        if turn.get("role") == "assistant"
    ]


def _strip_cache_control(value: Any) -> Any:
    """Without the marks by which a client says what to cache, which wander from turn to turn."""
    if isinstance(value, list):
        return [_strip_cache_control(one) for one in value]
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if name != "cache_control"}
    return value


def _extract_tool_names(tools: Any) -> list[str]:
    found: list[str] = []
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict):
            continue
        inner = tool.get("function")
        declared = tool.get("functionDeclarations", tool.get("function_declarations"))
        name = tool.get("name") or (inner.get("name") if isinstance(inner, dict) else None)
        found += _extract_tool_names(declared) if declared else [str(name or tool.get("type"))]
    return found


def _mask_volatile(value: Any) -> Any:
    """The same without what differs in every run."""
    if isinstance(value, str):
        return VOLATILE_TEXT.sub("#", value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0
    if isinstance(value, list):
        return [_mask_volatile(one) for one in value]
    if isinstance(value, dict):
        return {name: _mask_volatile(one) for name, one in value.items()}
    return value


def _strip_texts(value: Any, telling: bool = False) -> Any:
    """The same without its texts."""
    if isinstance(value, list):
        return [_strip_texts(one) for one in value]
    if isinstance(value, dict):
        return {name: _strip_texts(one, name in SHAPE_KEYS) for name, one in value.items()}
    return value if telling or value is None or isinstance(value, bool) else 0


def _hash_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _excerpt_difference(value: Any, other: Any) -> str:
    """From where it begins to differ."""
    if not isinstance(value, str) or not isinstance(other, str):
        return json.dumps(value)[:MAX_SHOWN_CHARACTERS]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(value, other, strict=False)))
    begin = max(0, same - 20)
    return f"{'…' if begin else ''}{value[begin : begin + MAX_SHOWN_CHARACTERS]!r}"
