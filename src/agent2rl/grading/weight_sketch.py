"""Small summaries of a weight matrix that can be compared without the matrix.

The *sketch* is a random projection with fixed signs: each value, with a sign of its own, is added to one of a
few hundred or thousand sums. It is linear and keeps angles: the sketch of a difference is the difference of
the sketches, and the cosine of two sketches is that of the matrices, up to about 1 / sqrt(length). It sees
nothing in a matrix whose lines moved.

The *norms* are the sorted lengths of the rows and of the columns. Permutations, flipped signs and rotations
between the layers do not change one or the other. They tell less than the sketch.

Signs come from a hash of the tensor's name, so they are the same on every machine. A few megabytes of each
file are in memory at a time.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from agent2rl.grading.tensor_comparison import (
    READABLE,
    Floats,
    matrix_shape,
    read_row_chunks,
    read_values,
)
from agent2rl.grading.untrusted_model_files import Tensor

LENGTHS = (2039, 1021, 509, 251, 127)
"""Possible lengths of a sketch: primes, so that no sum gets a whole column of a matrix."""
NORMS = 64
"""Row norms and column norms that are kept: so many evenly spaced ones of the sorted list."""
SIDE, VALUES = 8, 1024
"""Smallest matrix that has a sketch; smaller ones agree by chance."""

FOLDED = (
    (re.compile(r"(.*layers\.\d+\.)self_attn\.[qkv]_proj\.weight"), r"\1input_layernorm.weight"),
    (re.compile(r"(.*layers\.\d+\.)mlp\.(?:gate|up)_proj\.weight"), r"\1post_attention_layernorm.weight"),
    (re.compile(r"()lm_head\.weight"), r"\1model.norm.weight"),
)
"""Matrices and the norm whose weights scale their input, in models of the Llama kind. Before a model's basis
can be rotated, these weights must be multiplied into the matrix, so norms are taken of the product."""


@dataclass(frozen=True)
class SortedNorms:
    """Evenly spaced ones of the sorted lengths of a matrix's rows and columns."""

    rows: Floats
    columns: Floats


@dataclass(frozen=True)
class MatrixSketch:
    sketch: Floats
    norms: SortedNorms


@dataclass(frozen=True)
class ChangeSketch:
    """How a submitted matrix differs from the base's."""

    shape: tuple[int, ...]
    changes: Mapping[int, Floats]
    """By sketch length: the sketch of the difference. Values that are exactly 0, as in a pruned model, count
    as the base's."""
    bases: Mapping[tuple[int, str], Floats]
    """By sketch length and dtype: the sketch of the base, rounded to the dtype."""
    norms: SortedNorms
    base_norms: Mapping[str, SortedNorms]
    """By dtype, rounded to it."""


def can_sketch(tensor: Tensor) -> bool:
    return tensor.dtype in READABLE and is_large_matrix(tensor.shape)


def is_large_matrix(shape: tuple[int, ...]) -> bool:
    *leading, last = shape or (1,)
    rows = int(np.prod(leading, dtype=object))
    return rows * last >= VALUES and min(rows, last) >= SIDE


def find_input_norm(name: str, tensors: Mapping[str, Tensor]) -> Floats | None:
    """Return the weights of the norm that scales a matrix's input; None if there is none or it is unknown."""
    for pattern, norm in FOLDED:
        if match := pattern.fullmatch(name):
            found = tensors.get(match.expand(norm))
            fits = found and found.dtype in READABLE and found.shape == tensors[name].shape[-1:]
            return read_values(found, 0, found.parameters) if found and fits else None
    return None


def sketch_matrix(name: str, tensor: Tensor, length: int, input_norm: Floats | None) -> MatrixSketch:
    sketch, norms = np.zeros(length), _NormSums(input_norm)
    with np.errstate(all="ignore"):
        for number, values in enumerate(read_row_chunks(tensor, matrix_shape(tensor)[0])):
            norms.add_rows(values)
            _add_to_sketch(sketch, _flip_signs(values, _draw_signs(name, number, values.size)))
        return MatrixSketch(sketch, norms.sort())


def sketch_change(
    name: str,
    submitted: Tensor,
    base: Tensor,
    wanted: Collection[tuple[int, str]],
    input_norms: tuple[Floats | None, Floats | None],
) -> ChangeSketch:
    """Sketch the difference of a matrix of the base's shape. `wanted`: sketch lengths and dtypes of siblings.

    The base is rounded to the precision of what it is compared with, because two models that are stored in a
    lower precision share its rounding errors.
    """
    changes = {length: np.zeros(length) for length, _ in wanted}
    bases = {key: np.zeros(key[0]) for key in wanted}
    norms = _NormSums(input_norms[0])
    base_norms = {dtype: _NormSums(input_norms[1]) for _, dtype in wanted}
    rows = matrix_shape(base)[0]
    pairs = zip(read_row_chunks(submitted, rows), read_row_chunks(base, rows), strict=True)
    with np.errstate(all="ignore"):
        for number, (mine, theirs) in enumerate(pairs):
            norms.add_rows(mine)
            signs = _draw_signs(name, number, theirs.size)
            # Pruning is not training, so a zero counts as the base's value.
            change = np.where(mine == 0, 0.0, mine - round_values(theirs, submitted.dtype))
            flipped = _flip_signs(change, signs)
            for sketch in changes.values():
                _add_to_sketch(sketch, flipped)
            for dtype, sums in base_norms.items():
                rounded = round_values(theirs, dtype)
                sums.add_rows(rounded)
                flipped = _flip_signs(rounded, signs)
                for length in (length for length, kind in wanted if kind == dtype):
                    _add_to_sketch(bases[length, dtype], flipped)
        return ChangeSketch(base.shape, changes, bases, norms.sort(), _sort_all(base_norms))


def _sort_all(sums: Mapping[str, "_NormSums"]) -> dict[str, SortedNorms]:
    return {dtype: each.sort() for dtype, each in sums.items()}


def round_values(values: Floats, dtype: str) -> Floats:
    """Round to what a dtype can hold, to the nearest and half to even."""
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        # Add half of the lowest bit that stays, a bit less where that bit is even, and cut off the
        # rest.
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
        return rounded.view(np.float32).astype(np.float64)
    kinds = {"F16": np.float16, "F32": np.float32}
    return values.astype(kinds[dtype]).astype(np.float64) if dtype in kinds else values


def _draw_signs(name: str, chunk: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which values of a chunk get a minus."""
    # Chunks are counted, so CHUNK_VALUES is part of the format: another makes all fingerprints
    # useless.
    drawn = hashlib.shake_128(f"{chunk}:{name}".encode()).digest(-(-count // 8))
    return np.unpackbits(np.frombuffer(drawn, np.uint8), count=count).view(np.bool_)


def _flip_signs(values: Floats, signs: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    flipped: Floats = values.ravel().copy()
    np.negative(flipped, where=signs, out=flipped)
    return flipped


def _add_to_sketch(sketch: Floats, values: Floats) -> None:
    length = len(sketch)
    whole = len(values) // length * length
    sketch += values[:whole].reshape(-1, length).sum(axis=0)
    sketch[: len(values) - whole] += values[whole:]


@dataclass
class _NormSums:
    """Collects the squared lengths of rows and columns."""

    input_norm: Floats | None
    rows: list[Floats] = field(default_factory=list)
    columns: Floats | float = 0.0

    def add_rows(self, values: Floats) -> None:
        squares = np.square(values if self.input_norm is None else values * self.input_norm)
        self.rows.append(squares.sum(axis=1))
        self.columns = self.columns + squares.sum(axis=0)

    def sort(self) -> SortedNorms:
        return SortedNorms(_pick_sorted(np.concatenate(self.rows)), _pick_sorted(np.asarray(self.columns)))


def _pick_sorted(squares: Floats) -> Floats:
    """Return NORMS evenly spaced ones of the sorted lengths, with the shortest and the longest."""
    lengths = np.sqrt(np.sort(squares))
    places = np.linspace(0, len(lengths) - 1, NORMS).round().astype(int)
    picked: Floats = lengths[places]
    return picked


def list_sketchable(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the names of the matrices that have a sketch."""
    yield from (name for name in sorted(tensors) if can_sketch(tensors[name]))
