"""Compare one tensor of a submission with the base's, in one pass over both files.

Seen from the base tensor b, a submitted tensor is retained * b + rest, where rest is orthogonal to b. A child
retains all of b, however hard it was trained; an unrelated tensor retains nothing; a mixture is in between.
The same sums by row and by column show lines (rows or columns) that were scaled or went astray;
`is_rearranged` looks whether those that went astray are the base's at another place, with another sign or in
another basis. `measure_rest` asks whether the rest has anything to do with the base, and `measure_added_rows`
measures the rows of added tokens.

Only a few megabytes of each file are in memory at a time. `lineage` interprets the results.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, log, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from agent2rl.core.errors import MachineError
from agent2rl.grading.untrusted_model_files import DTYPE_BYTES, Tensor

Floats = npt.NDArray[np.float64]
READABLE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
CHUNK_VALUES = 1 << 19
SAMPLED_VALUES = 1 << 14
"""Values at each place that `differs_in_sample` looks at."""
SAMPLE = 64
"""Number of lines of a tensor that `is_rearranged` tries to find in the base."""
FOUND = 0.8
"""A line is the base's where their cosine is at least this; so are lines whose angles agree as well."""
ANGLES = 496
"""Fewer than these, of 32 lines with each other, can agree by chance."""
MAX_STRAY_COSINE = 0.5
"""A row or column went astray if its cosine with the base's at the same place is below this."""
REST_COLUMNS, REST_ANGLES = 256, 28
"""Columns that `measure_rest` looks at, evenly spaced, and the fewest angles between them that tell anything
(of 8 columns)."""


@dataclass(frozen=True)
class TensorFit:
    """A submitted tensor as seen from the base's; lengths are in units of the base tensor's."""

    unchanged: float
    """Share of values that are the base's, exactly."""
    inherited: float
    """The same of the base's values that are not zero: zeros agree between unrelated models too."""
    distance: float
    """Length of the difference."""
    retained: float
    """How much of the base is in it: its projection on the base."""
    added: float
    """Length of what is orthogonal to the base."""
    pull: float
    """Cosine of the difference with the base: near 0 for training and noise, negative where base went."""
    rescaled: float
    """Share of the difference, squared, that goes away when each row (or column) may be scaled."""
    line_cosine: float
    """Cosine with the base where each row (or column) may be scaled."""
    astray: tuple[tuple[int, ...], tuple[int, ...]]
    """Up to SAMPLE rows and columns that went astray, the farthest first."""

    @property
    def cosine(self) -> float:
        length = sqrt(self.retained**2 + self.added**2)
        return self.retained / length if length else 0.0


@dataclass(frozen=True)
class RestGeometry:
    """How the columns of the rest (what is orthogonal to the base) lie to each other."""

    alignment: float
    """Cosine of the angles between its columns with the angles between the base's."""
    chance: float
    """Standard deviation of the alignment for a model that was trained from other first weights. Its mean is
    then 0: each column of such a model could as well have the other sign."""
    structure: float
    """Standard deviations by which the angles differ from those of white noise, taken together."""
    weaker_half: float
    """Share of its squared length in the weaker half of its directions: 0 for a low-rank update (LoRA)."""


@dataclass(frozen=True)
class AddedRows:
    """The rows that a tensor has beyond the base's, one per added token."""

    count: int
    length: float | None
    """Median length, in units of the base rows' median length; None where that is zero or not finite."""


class NotFinite(ValueError):
    """A tensor has NaN, infinity, or values with infinite squares."""


def measure_tensor(submitted: Tensor, base: Tensor) -> TensorFit | None:
    """Compare a tensor of the base's shape; None if it has no values or the base is all zeros."""
    rows, columns = matrix_shape(base)
    by_row: list[Floats] = []
    by_column = np.zeros((3, columns))
    square, equal, inherited, nonzero = 0.0, 0, 0, 0
    with np.errstate(all="ignore"):
        for mine, theirs in zip(read_row_chunks(submitted, rows), read_row_chunks(base, rows), strict=True):
            # Sums of the difference, not of the submitted values: those would round away a small
            # change.
            change = mine - theirs
            pairs = ((change, theirs), (mine, mine), (theirs, theirs))
            by_row.append(np.stack([np.einsum("ij,ij->i", *pair) for pair in pairs]))
            by_column += np.stack([np.einsum("ij,ij->j", *pair) for pair in pairs])
            square += float(np.einsum("ij,ij->", change, change))
            equal += int(np.count_nonzero(change == 0))
            inherited += int(np.count_nonzero((change == 0) & (theirs != 0)))
            nonzero += int(np.count_nonzero(theirs))
        if not by_row:
            return None
        shares = equal / (rows * columns), inherited / max(1, nonzero)
        return _compute_fit(np.concatenate(by_row, axis=1), by_column, square, shares)


def differs_in_sample(submitted: Tensor, base: Tensor) -> bool:
    """Return whether a few values at the beginning and in the middle differ from the base's.

    If so, the tensors differ. If not, they may still differ elsewhere.
    """
    if not {submitted.dtype, base.dtype} <= READABLE.keys():
        return False
    if not (count := min(base.parameters, SAMPLED_VALUES)):
        return False
    for start in {0, (base.parameters - count) // 2}:
        mine, theirs = (read_values(tensor, start, count) for tensor in (submitted, base))
        # NaN differs from itself, but the same NaN in both is no change.
        if np.any((mine != theirs) & ~(np.isnan(mine) & np.isnan(theirs))):
            return True
    return False


def is_rearranged(submitted: Tensor, base: Tensor, astray: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    """Return whether the lines that went astray are the base's: moved, rotated, or with another sign."""
    rows, columns = matrix_shape(base)
    with np.errstate(all="ignore"):
        return (
            len(astray[0]) > 1 and _match_base_lines(_sample_rows(submitted, base, astray[0]), columns)
        ) or (len(astray[1]) > 1 and _match_base_lines(_sample_columns(submitted, base, astray[1]), rows))


def measure_rest(submitted: Tensor, base: Tensor, retained: float) -> RestGeometry | None:
    """Compare the angles between the columns of the rest with the angles between the base's columns.

    Training updates a matrix by what flows through it, so what it adds has angles like the base's. Another
    model has angles of its own; white noise has none. None where there are too few columns to tell.
    """
    rows, columns = matrix_shape(base)
    picked = np.unique(np.linspace(0, columns - 1, min(columns, REST_COLUMNS)).astype(int))
    rest_gram, base_gram = np.zeros((2, len(picked), len(picked)))
    with np.errstate(all="ignore"):
        for mine, theirs in zip(read_row_chunks(submitted, rows), read_row_chunks(base, rows), strict=True):
            base_columns = theirs[:, picked]
            rest_columns = mine[:, picked] - retained * base_columns
            rest_gram += rest_columns.T @ rest_columns
            base_gram += base_columns.T @ base_columns
        measurable = (np.diag(rest_gram) > 0) & (np.diag(base_gram) > 0)
        square = np.ix_(measurable, measurable)
        return _compare_grams(rest_gram[square], base_gram[square], rows)


def _compare_grams(rest_gram: Floats, base_gram: Floats, rows: int) -> RestGeometry | None:
    upper = np.triu_indices(len(rest_gram), 1)
    rest_angles, base_angles = (_compute_cosines(gram)[upper] for gram in (rest_gram, base_gram))
    length = float(np.linalg.norm(rest_angles) * np.linalg.norm(base_angles))
    if len(rest_angles) < REST_ANGLES or not length > 0:
        return None
    products = rest_angles * base_angles
    # The squared cosine of two random directions in so many dimensions has mean 1 / rows.
    excess = float(np.mean(rest_angles**2)) * rows - 1
    directions = min(rows, len(rest_gram))
    # A direction that is not there may get a tiny negative value by rounding.
    energies = np.maximum(np.linalg.eigvalsh(rest_gram), 0.0)[-directions:]
    return RestGeometry(
        alignment=float(products.sum()) / length,
        chance=float(np.linalg.norm(products)) / length,
        structure=excess / sqrt(2 * (rows - 1) / (rows + 2) / len(rest_angles)),
        weaker_half=float(energies[: directions // 2].sum() / energies.sum()),
    )


def measure_added_rows(submitted: Tensor, base: Tensor) -> AddedRows | None:
    """Measure the rows after the base's; None if there are none or the dtype has no lengths."""
    count = submitted.shape[0] - base.shape[0] if base.shape else 0
    if count <= 0:
        return None
    if not {submitted.dtype, base.dtype} <= READABLE.keys():
        return AddedRows(count, None)
    with np.errstate(all="ignore"):
        added = _median_row_length(submitted, base.shape[0], submitted.shape[0])
        usual = _median_row_length(base, 0, base.shape[0])
        length = added / usual if usual > 0 else float("nan")
    return AddedRows(count, length if isfinite(length) else None)


def _median_row_length(tensor: Tensor, first: int, end: int) -> float:
    """Of the rows from `first` to before `end`; here a row is all that belongs to one token."""
    columns = prod(tensor.shape[1:])
    step = max(1, CHUNK_VALUES // max(1, columns))
    lengths: list[Floats] = []
    for start in range(first, end, step):
        count = min(step, end - start)
        rows = read_values(tensor, start * columns, count * columns).reshape(count, columns)
        lengths.append(np.linalg.norm(rows, axis=1))
    return float(np.median(np.concatenate(lengths))) if lengths else 0.0


def matrix_shape(tensor: Tensor) -> tuple[int, int]:
    """Return the shape of a tensor as a matrix, with its last dimension as columns."""
    *leading, last = tensor.shape or (1,)
    return prod(leading), last


def _compute_fit(
    rows: Floats, columns: Floats, square: float, shares: tuple[float, float]
) -> TensorFit | None:
    """`shares` are those of unchanged values and of inherited ones."""
    gain, mine, theirs = (float(total) for total in rows.sum(axis=1))
    if not (isfinite(mine) and isfinite(theirs) and isfinite(square)):
        raise NotFinite
    if theirs <= 0:
        return None
    # The first sum is of the difference with the base: with the third it is that of the submission.
    explained = max(float(np.nansum((lines[0] + lines[2]) ** 2 / lines[2])) for lines in (rows, columns))
    residual = max(0.0, mine - explained)
    return TensorFit(
        unchanged=shares[0],
        inherited=shares[1],
        distance=sqrt(square / theirs),
        retained=1 + gain / theirs,
        added=sqrt(max(0.0, square / theirs - (gain / theirs) ** 2)),
        pull=gain / sqrt(square * theirs) if square else 0.0,
        rescaled=max(0.0, 1 - residual / square) if square else 0.0,
        line_cosine=sqrt(min(1.0, explained / mine)) if mine else 0.0,
        astray=(_find_stray_lines(rows), _find_stray_lines(columns)),
    )


def _find_stray_lines(lines: Floats) -> tuple[int, ...]:
    # A line of zeros has no direction that it could have left.
    cosines = np.nan_to_num((lines[0] + lines[2]) / np.sqrt(lines[1] * lines[2]), nan=1.0)
    worst = np.argsort(cosines, kind="stable")[:SAMPLE]
    return tuple(int(line) for line in worst if cosines[line] < MAX_STRAY_COSINE)


@dataclass(frozen=True)
class _SampledLines:
    """Some rows (or columns) of a submitted tensor, and how they lie to each of the base's."""

    dots: Floats
    """With every row (or column) of the base."""
    squares: Floats
    """Of every row (or column) of the base."""
    gram: Floats
    """With each other."""
    base_gram: Floats
    """The same for the base's at the same places."""


def _sample_rows(submitted: Tensor, base: Tensor, picked: tuple[int, ...]) -> _SampledLines:
    columns = matrix_shape(base)[1]
    mine, theirs = (
        np.stack([read_values(tensor, row * columns, columns) for row in picked])
        for tensor in (submitted, base)
    )
    blocks = [
        (mine @ rows.T, np.square(rows).sum(axis=1)) for rows in read_row_chunks(base, matrix_shape(base)[0])
    ]
    dots, squares = (np.concatenate(parts, axis=-1) for parts in zip(*blocks, strict=True))
    return _SampledLines(dots, squares, mine @ mine.T, theirs @ theirs.T)


def _sample_columns(submitted: Tensor, base: Tensor, picked: tuple[int, ...]) -> _SampledLines:
    rows, columns = matrix_shape(base)
    chosen = list(picked)
    dots, squares = np.zeros((len(chosen), columns)), np.zeros(columns)
    gram, base_gram = np.zeros((2, len(chosen), len(chosen)))
    for mine, theirs in zip(read_row_chunks(submitted, rows), read_row_chunks(base, rows), strict=True):
        dots += mine[:, chosen].T @ theirs
        squares += np.square(theirs).sum(axis=0)
        gram += mine[:, chosen].T @ mine[:, chosen]
        base_gram += theirs[:, chosen].T @ theirs[:, chosen]
    return _SampledLines(dots, squares, gram, base_gram)


def _match_base_lines(lines: _SampledLines, length: int) -> bool:
    """One by one, or in their angles to each other, far beyond what chance gives."""
    lengths = np.sqrt(np.outer(np.diag(lines.gram), lines.squares))
    best = np.nan_to_num(np.abs(lines.dots) / lengths).max(axis=1)
    # About the largest cosine that a line has with that many unrelated ones.
    chance = sqrt(2 * log(max(2, len(lines.squares))) / length)
    if float(np.median(best)) >= max(FOUND, 1.6 * chance):
        return True
    upper = np.triu_indices(len(lines.gram), 1)
    mine, theirs = (_compute_cosines(gram)[upper] for gram in (lines.gram, lines.base_gram))
    size = float(np.linalg.norm(mine) * np.linalg.norm(theirs))
    return len(mine) >= ANGLES and size > 0 and float(mine @ theirs) / size >= FOUND


def _compute_cosines(gram: Floats) -> Floats:
    lengths = np.sqrt(np.diag(gram))
    cosines: Floats = np.nan_to_num(gram / np.outer(lengths, lengths))
    return cosines


def read_row_chunks(tensor: Tensor, rows: int) -> Iterator[Floats]:
    """Yield the first rows of a tensor in chunks."""
    columns = matrix_shape(tensor)[1]
    step = max(1, CHUNK_VALUES // max(1, columns))
    for start in range(0, rows if columns else 0, step):
        many = min(step, rows - start)
        yield read_values(tensor, start * columns, many * columns).reshape(many, columns)


def read_values(tensor: Tensor, start: int, count: int) -> Floats:
    kind: np.dtype[Any] = np.dtype(READABLE[tensor.dtype])
    with tensor.file.open("rb") as file:
        file.seek(tensor.offsets[0] + start * DTYPE_BYTES[tensor.dtype])
        data = file.read(count * kind.itemsize)
    if len(data) != count * kind.itemsize:
        raise MachineError(f"{tensor.file} became shorter while it was read.")
    raw = np.frombuffer(data, dtype=kind)
    if tensor.dtype == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float64)
