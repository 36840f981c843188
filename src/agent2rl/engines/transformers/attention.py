"""Attention for one new token per row, where several query heads share a key head.

The library repeats keys and values for each query head when there is a mask, which for a batch of long texts
moves many times the memory that decoding needs. With one token per row, the query heads that share a key head
are laid where the tokens of a text would be: nothing is repeated. Longer inputs go to the library's own.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "agent2rl"
UNUSUAL = ("softcap", "s_aux", "position_bias")
"""What a few models add to attention; the library's function knows whether it can."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    rows, heads, tokens, size = query.shape
    unusual = any(options.get(name) is not None for name in UNUSUAL)
    if tokens > 1 or heads == key.shape[1] or unusual:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], size)
    output = scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=options.get("scaling")
    )
    return output.reshape(rows, 1, heads, value.shape[3]), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
