"""Attention for a few new tokens per row, where several query heads share a key head.

The library repeats keys and values for each query head when there is a mask, which for a batch of long texts
moves many times the memory that decoding needs. Here the query heads that share a key head are laid where the
tokens of a text would be: nothing but the mask is repeated. Where the new tokens are many, that is the larger
of the two, and they go to the library's own.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agent2rl.engines.transformers.ragged_attention import RaggedBounds, attend_ragged, can_use_flash_kernel

NAME = "agent2rl"
FEW_TOKENS_FACTOR = 8
"""New tokens are few where there are so many times as many to look at."""
UNUSUAL_OPTIONS = ("softcap", "s_aux", "position_bias")
"""What a few models add to attention; the library's function knows whether it can."""


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
