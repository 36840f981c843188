"""Attention for decoding: grouped-query attention without repeated keys, and ragged batches by flash kernels.

The library repeats keys and values for each query head when there is a mask, which for a batch of long
texts moves many times the memory that decoding needs. Here the query heads that share a key head are laid
where the tokens of a text would be, so only the mask is repeated; many new tokens go to the library's own
function. On a GPU, flash kernels take each row's start and length instead of a mask. On CPU, in float32 and
for sliding-window layers, masks remain.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# Ragged attention: rows of different lengths without padding or masks, with flash kernels on a GPU

MAX_HEAD_SIZE = 256
"""There is no flash kernel for larger heads."""


@dataclass(frozen=True)
class RaggedBounds:
    """Which key columns each row attends to. All rows have the same number of new tokens, at their end."""

    starts: Tensor
    """The first column of each row, (rows,)."""
    used: Tensor
    """Number of columns of each row from there on."""
    tokens: int
    """New tokens per row; those before the row's start attend to nothing."""
    columns: int
    """Maximum number of columns of a row."""
    _places: dict[int, Tensor] = field(default_factory=dict)
    _queries: list[Tensor] = field(default_factory=list)

    def compute_row_offsets(self, row_tokens: int) -> Tensor:
        """Return the offset of each row if a row takes `row_tokens`. Cached, because all layers share it."""
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
    """Return (rows, tokens, heads, size). Keys and values are laid out as in `kv_cache`: (rows, heads,
    columns, size)."""
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
    """Return a view of all rows as one long row of tokens, without copying."""
    rows, heads, _, size = held.shape
    row, head = held.stride(0) // size, held.stride(1) // size
    return held.as_strided((rows * row - (heads - 1) * head, heads, size), (size, held.stride(1), 1))


# Registration with the library

NAME = "agent2rl"
FEW_TOKENS_FACTOR = 8
"""New tokens count as few if there are at least this many times as many columns to attend to."""
UNUSUAL_OPTIONS = ("softcap", "s_aux", "position_bias")
"""Attention options of a few models, which are left to the library's function."""


def grouped_query_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    rows, heads, tokens, size = query.shape
    ragged: RaggedBounds | None = options.pop("ragged", None)
    unusual = any(options.get(name) is not None for name in UNUSUAL_OPTIONS)
    if ragged is not None and can_use_flash_kernel(query) and not unusual:
        return attend_ragged(query, key, value, ragged, options.get("scaling")), None
    many = tokens > 1 and tokens * FEW_TOKENS_FACTOR > key.shape[2]
    if many or attention_mask is None or heads == key.shape[1] or unusual:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    shared = heads // key.shape[1]
    grouped = query.reshape(rows, key.shape[1], shared * tokens, size)
    mask = attention_mask if tokens == 1 else attention_mask.repeat(1, 1, shared, 1)
    output = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=options.get("scaling"))
    return output.reshape(rows, heads, tokens, value.shape[3]).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_query_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
