"""What an adapter does to one tensor of the base model, computed a few rows at a time.

LoRA       W + s B A, where s is alpha / rank;  with lora_bias  b + s c
rsLoRA     the same, where s is alpha / sqrt(rank)
DoRA       V = W + s B A, with each output scaled to a trained length: V m / |V|
LoHa       W + s (A1 B1) * (A2 B2), value by value
IA3        each output of W, and its bias, times l; or each input of W times l
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agent2rl.grading.model_builder import decode_values, encode_values, row_bytes
from agent2rl.grading.untrusted_model_files import DTYPE_BYTES, Tensor, read_chunks

Floats = npt.NDArray[np.float32]
CHUNK_VALUES = 1 << 19
"""Values of a matrix that one thread has in memory at a time."""


class TensorUpdate(Protocol):
    """The change of one tensor."""

    @property
    def factor_bytes(self) -> int:
        """Memory for the adapter's tensors while they are read."""
        ...

    def merge(self, tensor: Tensor) -> Iterator[bytes]:
        """Yield the bytes of the merged tensor, a few rows at a time."""
        ...


@dataclass(frozen=True)
class LowRankUpdate:
    """LoRA, rsLoRA and DoRA."""

    down: Tensor
    up: Tensor
    scaling: float
    transposed: bool
    """Whether the matrix has its inputs as rows, as embeddings have."""
    magnitude: Tensor | None = None
    """The length of each output, in a DoRA."""

    @property
    def factor_bytes(self) -> int:
        return _sum_factor_bytes(self.down, self.up)

    def merge(self, tensor: Tensor) -> Iterator[bytes]:
        # An overflow is not lost: whoever reads the merged values refuses what is not finite.
        with np.errstate(all="ignore"):
            factors = self._compute_factors(tensor)
            for first, rows in self._add_rows(tensor):
                if factors is not None:
                    rows *= factors if self.transposed else factors[first : first + len(rows), None]
                yield encode_values(rows, tensor.dtype)

    def _compute_factors(self, matrix: Tensor) -> Floats | None:
        """Return the factor of each output: its trained length by the one that it has; None without DoRA."""
        if self.magnitude is None:
            return None
        axis = 0 if self.transposed else 1
        # The product is computed twice, first for the lengths alone: a large matrix is never whole
        # in memory.
        squares = [np.square(rows).sum(axis=axis) for _, rows in self._add_rows(matrix)]
        lengths = np.sqrt(np.sum(squares, axis=0) if self.transposed else np.concatenate(squares))
        factors: Floats = _read_values(self.magnitude) / lengths
        return factors

    def _add_rows(self, matrix: Tensor) -> Iterator[tuple[int, Floats]]:
        """Yield rows of the matrix with the scaled product added, and the number of the first of them."""
        down, up = _read_values(self.down), _read_values(self.up)
        left, right = (down.T, up.T) if self.transposed else (up, down)
        for first, rows in _iter_rows(matrix):
            yield first, rows + (left[first : first + len(rows)] @ right) * np.float32(self.scaling)


@dataclass(frozen=True)
class BiasUpdate:
    """The bias of a LoRA with lora_bias."""

    added: Tensor
    scaling: float

    @property
    def factor_bytes(self) -> int:
        return _sum_factor_bytes(self.added)

    def merge(self, tensor: Tensor) -> Iterator[bytes]:
        with np.errstate(all="ignore"):
            values = _read_values(tensor) + _read_values(self.added) * np.float32(self.scaling)
            yield encode_values(values, tensor.dtype)


@dataclass(frozen=True)
class HadamardUpdate:
    """LoHa: two products of low rank, multiplied value by value."""

    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    """Each has the factor with the outputs, and the one with the inputs."""
    scaling: float

    @property
    def factor_bytes(self) -> int:
        return _sum_factor_bytes(*self.first, *self.second)

    def merge(self, tensor: Tensor) -> Iterator[bytes]:
        (left, right), (other_left, other_right) = (
            [_read_values(factor) for factor in pair] for pair in (self.first, self.second)
        )
        with np.errstate(all="ignore"):
            for begin, rows in _iter_rows(tensor):
                part = slice(begin, begin + len(rows))
                product: Floats = np.multiply(left[part] @ right, other_left[part] @ other_right)
                yield encode_values(rows + product * np.float32(self.scaling), tensor.dtype)


@dataclass(frozen=True)
class FactorUpdate:
    """IA3: each row or each column of a matrix times a number, and each value of a bias."""

    factors: Tensor
    by_row: bool

    @property
    def factor_bytes(self) -> int:
        return _sum_factor_bytes(self.factors)

    def merge(self, tensor: Tensor) -> Iterator[bytes]:
        factors = _read_values(self.factors).reshape(-1)
        if len(tensor.shape) == 2 and self.by_row:
            factors = factors[:, None]
        with np.errstate(all="ignore"):
            for first, rows in _iter_rows(tensor):
                part = factors[first : first + len(rows)] if self.by_row else factors
                yield encode_values(rows * part, tensor.dtype)


def _sum_factor_bytes(*factors: Tensor) -> int:
    """Return the memory of tensors while they are read: as stored, and as 32-bit floats."""
    return sum(each.parameters * (DTYPE_BYTES[each.dtype] + 4) for each in factors)


def _iter_rows(tensor: Tensor) -> Iterator[tuple[int, Floats]]:
    """Yield rows of a matrix or values of a vector, and the number of the first of them."""
    count = tensor.shape[0]
    step = max(1, CHUNK_VALUES * DTYPE_BYTES[tensor.dtype] // max(1, row_bytes(tensor)))
    for first in range(0, count, step):
        yield first, _read_rows(tensor, first, min(step, count - first))


def _read_values(tensor: Tensor) -> Floats:
    return decode_values(b"".join(read_chunks(tensor)), tensor.dtype).reshape(tensor.shape)


def _read_rows(tensor: Tensor, first: int, count: int) -> Floats:
    size = row_bytes(tensor)
    begin = tensor.offsets[0] + first * size
    return _read_values(
        replace(tensor, shape=(count, *tensor.shape[1:]), offsets=(begin, begin + count * size))
    )
