"""A judge's preferences in AlpacaEval's file format, and the win rates they come to.

A file is a JSON list, packed with xz or not. Each entry has the instruction, both outputs (`output_1` is the
reference's; where it is left out, the official one stands in), and a preference from 1 (the reference) to 2
(the model); 0 is a tie, and null a comparison that failed, which counts for neither side.
"""

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.records import WinRates
from agent2rl.evaluators.length_control import Difficulties, Pair, controlled, rate

FORMAT = "It is a JSON list with an instruction, output_1, output_2 and a preference in each entry."


class Annotation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    instruction: str
    output_1: str | None = None
    output_2: str
    preference: float | None = Field(default=None, ge=0, le=2)
    generator_2: str = ""

    @property
    def share(self) -> float | None:
        """From 0 (the reference) to 1 (the model)."""
        if self.preference is None:
            return None
        return (1.5 if self.preference == 0 else max(1.0, self.preference)) - 1


def read(path: Path) -> list[Annotation]:
    found = loaded(path, FORMAT)
    try:
        rows = TypeAdapter(list[Annotation]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where or 'the whole'}: {first['msg']}.", FORMAT) from error
    if len([row for row in rows if row.share is not None]) < 2:
        raise UserError(f"{path} has fewer than two preferences.", FORMAT)
    return rows


def loaded(path: Path, form: str) -> Any:
    """The JSON of a file, which may be packed with xz."""
    try:
        data = path.read_bytes()
        return json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.", form) from error
    except (lzma.LZMAError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}.", form) from error


def win_rates(path: Path, references: Mapping[str, str], known: Difficulties | None) -> WinRates:
    """`references`: instruction → the reference's output.

    Difficulties go by a row's place in the file, as in the official code. In a file that lacks rows they are
    other instructions' from there on; what was published was computed so.
    """
    rows = read(path)
    placed = [(place, row, row.share) for place, row in enumerate(rows)]
    judged = [(place, row, share) for place, row, share in placed if share is not None]
    raw, error = rate([share for _, _, share in judged])
    found = WinRates(
        model=rows[0].generator_2,
        n=len(judged),
        missing=len(rows) - len(judged),
        win_rate=raw,
        standard_error=error,
    )
    if known is None:
        return found
    pairs = [
        Pair(share, len(_reference(row, references, path)) - len(row.output_2), place)
        for place, row, share in judged
    ]
    control = controlled(pairs, known)
    value, spread = rate(control.expected)
    return found.model_copy(
        update={
            "length_controlled": value,
            "length_controlled_error": spread,
            "weights": control.weights,
            "difficulties": known.source,
            "difficulties_sha256": known.sha256,
        }
    )


def _reference(row: Annotation, references: Mapping[str, str], path: Path) -> str:
    found = row.output_1 if row.output_1 is not None else references.get(row.instruction)
    if found is None:
        raise UserError(f"{path}: {row.instruction[:60]!r} has no output_1 and is no official instruction.")
    return found
