"""Attention over rows of different lengths without padding or masks, by the flash kernels of a GPU.

A mask costs a pass over all that is masked, and shuts out the fastest kernels. These take where each row
begins and how long it is instead, read each key head once for all query heads that share it, and look at
nothing else. On a CPU, in float32 and for models whose layers see only the nearest tokens, masks remain.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

MAX_HEAD_SIZE = 256
"""Heads larger than this have no such kernel."""


@dataclass(frozen=True)
class RaggedBounds:
    """Which columns of the keys each row looks at. Every row has as many new tokens, the last at its end."""

    starts: Tensor
    """The first column of each row, (rows,)."""
    used: Tensor
    """How many columns from there on."""
    tokens: int
    """New ones in each row; those before the row's start look at nothing."""
    columns: int
    """No row has more."""
    _places: dict[int, Tensor] = field(default_factory=dict)
    _queries: list[Tensor] = field(default_factory=list)

    def compute_row_offsets(self, row_tokens: int) -> Tensor:
        """Where each row begins, if a row takes so much room. All layers share it."""
        if row_tokens not in self._places:
            rows = torch.arange(len(self.starts) + 1, device=self.starts.device) * row_tokens
            rows[:-1] += self.starts
            self._places[row_tokens] = rows.int()
        return self._places[row_tokens]

    def compute_query_offsets(self) -> Tensor:
        if not self._queries:
            rows = torch.arange(len(self.starts) + 1, device=self.starts.device)
            self._queries.append((rows * self.tokens).int())
        return self._queries[0]


def can_use_flash_kernel(query: Tensor) -> bool:
    return (
        query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and query.shape[3] <= MAX_HEAD_SIZE
    )


def attend_ragged(
    query: Tensor, key: Tensor, value: Tensor, ragged: RaggedBounds, scale: float | None
) -> Tensor:
    """(rows, tokens, heads, size); keys and values as `kv_cache` lays them, (rows, heads, columns, size)."""
    rows, heads, tokens, size = query.shape
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query.transpose(1, 2).reshape(rows * tokens, heads, size),
        _flatten_rows(key),
        _flatten_rows(value),
        ragged.compute_query_offsets(),
        ragged.compute_row_offsets(key.stride(0) // size),
        tokens,
        ragged.columns,
        0.0,
        True,
        False,
        scale=scale,
        seqused_k=ragged.used,
    )[0]
    return output.view(rows, tokens, heads, size)


def _flatten_rows(held: Tensor) -> Tensor:
    """One long row of tokens, in which the rows begin at their places: a view, nothing is copied."""
    rows, heads, _, size = held.shape
    row, head = held.stride(0) // size, held.stride(1) // size
    return held.as_strided((rows * row - (heads - 1) * head, heads, size), (size, held.stride(1), 1))
