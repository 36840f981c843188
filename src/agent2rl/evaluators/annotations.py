"""A judge's preferences in AlpacaEval's file format, and the win rates they come to.

A file is a JSON list, packed with xz or gzip or not, of one model's comparisons, one to an instruction. Each
entry has the instruction, both outputs (`output_1` is the reference's; where it is left out, the official one
stands in), and a preference from 1 (the reference) to 2 (the model); 0 is a tie, and null or NaN a comparison
that failed, which counts for neither side.
"""

import gzip
import json
import lzma
import math
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.records import WinRates
from agent2rl.evaluators.length_control import (
    ComparedPair,
    InstructionDifficulties,
    compute_mean_percent,
    control_length,
)

PACKED = {b"\xfd7zXZ\0": lzma.decompress, b"\x1f\x8b": gzip.decompress}
"""How a file begins that is packed."""
FORMAT = "It is a JSON list with an instruction, output_1, output_2 and a preference in each entry."


Preference = Annotated[float, Field(ge=0, le=2)]


def _replace_nan(value: Any) -> Any:
    """What is no number stands for none."""
    return None if isinstance(value, float) and math.isnan(value) else value


class JudgeAnnotation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    instruction: str
    output_1: str | None = None
    output_2: str
    preference: Annotated[Preference | None, BeforeValidator(_replace_nan)] = None
    generator_1: str = ""
    generator_2: str = ""

    @property
    def share(self) -> float | None:
        """From 0 (the reference) to 1 (the model)."""
        if self.preference is None:
            return None
        return (1.5 if self.preference == 0 else max(1.0, self.preference)) - 1


def read_annotations(path: Path) -> list[JudgeAnnotation]:
    found = load_json(path, FORMAT)
    try:
        rows = TypeAdapter(list[JudgeAnnotation]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where or 'the whole'}: {first['msg']}.", FORMAT) from error
    if len([row for row in rows if row.share is not None]) < 2:
        raise UserError(f"{path} has fewer than two preferences.", FORMAT)
    for models in ({row.generator_2 for row in rows}, {row.generator_1 for row in rows}):
        if len(models) > 1:
            raise UserError(f"{path} mixes models: {', '.join(sorted(models)[:5])}.", "Make a file of each.")
    text, times = Counter(row.instruction for row in rows).most_common(1)[0]
    if times > 1:
        raise UserError(f"{path} has {times} entries for {text[:60]!r}.", "Leave one of them.")
    return rows


def is_compressed(data: bytes) -> bool:
    return data.startswith(tuple(PACKED))


def load_json(path: Path, form: str) -> Any:
    """The JSON of a file, which may be packed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.", form) from error
    try:
        for sign, unpack in PACKED.items():
            data = unpack(data) if data.startswith(sign) else data
        return json.loads(data)
    except (lzma.LZMAError, zlib.error, OSError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}.", form) from error


def compute_win_rates(
    path: Path, references: Mapping[str, str], known: InstructionDifficulties | None
) -> WinRates:
    """`references`: instruction → the reference's output, in the official order.

    Difficulties go by a row's place, as in the official code, once the rows are in the official order. In a
    file that lacks rows they are other instructions' from there on; what was published was computed so.
    """
    rows = read_annotations(path)
    if known is not None:
        rows = _sort_officially(rows, references, path)
    placed = [(place, row, row.share) for place, row in enumerate(rows)]
    judged = [(place, row, share) for place, row, share in placed if share is not None]
    raw, error = compute_mean_percent([share for _, _, share in judged])
    found = WinRates(
        model=rows[0].generator_2,
        n=len(judged),
        missing=len(rows) - len(judged),
        absent=max(0, len(references) - len(rows)),
        win_rate=raw,
        standard_error=error,
    )
    if known is None:
        return found
    pairs = [
        ComparedPair(share, len(_get_reference(row, references)) - len(row.output_2), place)
        for place, row, share in judged
    ]
    try:
        control = control_length(pairs, known)
    except GradingError as why:  # the raw rate stands all the same
        return found.model_copy(update={"difficulties": f"not used: {why.message}"})
    value, spread = compute_mean_percent(control.expected)
    return found.model_copy(
        update={
            "length_controlled": value,
            "length_controlled_error": spread,
            "weights": control.weights,
            "difficulties": known.source,
            "difficulties_sha256": known.sha256,
        }
    )


def _sort_officially(
    rows: list[JudgeAnnotation], references: Mapping[str, str], path: Path
) -> list[JudgeAnnotation]:
    places = {instruction: place for place, instruction in enumerate(references)}
    for row in rows:
        if row.instruction not in places:
            raise UserError(f"{path}: {row.instruction[:60]!r} is no official instruction.", FORMAT)
    return sorted(rows, key=lambda row: places[row.instruction])


def _get_reference(row: JudgeAnnotation, references: Mapping[str, str]) -> str:
    return references[row.instruction] if row.output_1 is None else row.output_1
