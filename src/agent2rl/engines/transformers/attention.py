"""Attention over packed rows: the new tokens of all rows lie in one sequence, without padding.

A pass of the network reads one sequence, (1, tokens), in which the tokens of one row follow those of the
last. Only attention knows where rows begin and end. `CachedRows` (in `cached_rows`) attend to their slots of
the KV cache, too; `PackedSequences` attend to nothing else and can be trained. On a GPU, one flash kernel
takes the bounds of all rows. On CPU, and for what the kernel cannot do, rows are attended to one by one.

Passes without packed rows, such as a training of the library's own, use the library's function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

MAX_FLASH_HEAD_SIZE = 256
"""There is no flash kernel for larger heads."""
MAX_KEPT_MASK = 1 << 20
"""Larger masks are built anew in each layer."""


@dataclass(frozen=True)
class LayerAttention:
    """What is special about a layer's attention."""

    scale: float | None = None
    window: int | None = None
    """A token sees only so many of the nearest tokens, itself included."""
    chunk: int | None = None
    """A token sees only the tokens of its own chunk of the text."""
    softcap: float | None = None
    """Scores are limited smoothly to this size."""
    sinks: Tensor | None = None
    """A score per head that takes part in the softmax and has no value."""

    @property
    def is_plain(self) -> bool:
        """Whether the usual kernels can compute it, apart from which tokens are seen."""
        return self.softcap is None and self.sinks is None

    @property
    def sees_everything(self) -> bool:
        return self.window is None and self.chunk is None

    def mark_seen(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return which keys each query sees, by their positions: broadcast (..., queries, keys)."""
        queries, keys = queries[..., :, None], keys[..., None, :]
        seen = keys <= queries
        if self.window is not None:
            seen = seen & (queries - keys < self.window)
        if self.chunk is not None:
            seen = seen & (queries // self.chunk == keys // self.chunk)
        return seen


class PackedRows(Protocol):
    """The rows of a pass."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        """Return (tokens, heads, size) for queries of (heads, tokens, size)."""
        ...


@dataclass(frozen=True)
class FlashBounds:
    """The bounds of rows for the flash kernel, as tensors, so that a recorded graph can be replayed."""

    queries: Tensor
    """Where each row's new tokens begin, and the end of the last: (rows + 1)."""
    keys: Tensor
    """Where each row's keys begin, in tokens of one head: (rows + 1); the last is not used."""
    used: Tensor
    """Number of keys of each row, (rows)."""
    longest_query: int
    longest_key: int


# Rows without a cache


@dataclass
class PackedSequences:
    """Whole texts. Some may continue a text before them, a prompt, that other texts continue too."""

    counts: Sequence[int]
    """Tokens of each text, in the order in which they are packed."""
    device: torch.device
    prompts: Sequence[int | None] = ()
    """Which text each one continues; None if it stands alone. Empty if all do."""
    _masks: "RowMasks" = field(default_factory=lambda: RowMasks())

    @cached_property
    def starts(self) -> list[int]:
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + count)
        return starts

    @cached_property
    def positions(self) -> Tensor:
        """The position of each token in its text, counted from the start of its prompt, (tokens)."""
        return torch.tensor(
            [
                position
                for number, count in enumerate(self.counts)
                for position in range(self._count_before(number), self._count_before(number) + count)
            ],
            device=self.device,
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        """Keys and values are those of the pass itself: (1, heads, tokens, size)."""
        if can_use_flash_kernel(key, layer) and not any(prompt is not None for prompt in self.prompts):
            bounds = self._flash_bounds
            return attend_by_flash_kernel(query, key, value, bounds, layer)
        rows = []
        for number in range(len(self.counts)):
            first, last = self.starts[number], self.starts[number + 1]
            keys, values = key[0, :, first:last], value[0, :, first:last]
            prompt = self.prompts[number] if self.prompts else None
            if prompt is not None:
                before = slice(self.starts[prompt], self.starts[prompt + 1])
                keys = torch.cat([key[0, :, before], keys], 1)
                values = torch.cat([value[0, :, before], values], 1)
            rows.append(attend_row(query[:, first:last], keys, values, layer, self._masks))
        return torch.cat(rows)

    def _count_before(self, number: int) -> int:
        prompt = self.prompts[number] if self.prompts else None
        return 0 if prompt is None else self.counts[prompt]

    @cached_property
    def _flash_bounds(self) -> FlashBounds:
        starts = torch.tensor(self.starts, device=self.device).int()
        longest = max(self.counts)
        return FlashBounds(starts, starts, starts.diff(), longest, longest)


# Kernels


def can_use_flash_kernel(key: Tensor, layer: LayerAttention) -> bool:
    return (
        key.is_cuda
        and key.dtype in (torch.bfloat16, torch.float16)
        and key.shape[3] <= MAX_FLASH_HEAD_SIZE
        and layer.is_plain
        and layer.chunk is None
    )


def attend_by_flash_kernel(
    query: Tensor, key: Tensor, value: Tensor, bounds: FlashBounds, layer: LayerAttention
) -> Tensor:
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query.transpose(0, 1).to(key.dtype),
        _flatten_slots(key),
        _flatten_slots(value),
        bounds.queries,
        bounds.keys,
        bounds.longest_query,
        bounds.longest_key,
        0.0,
        True,
        # The operator takes these by position: no dropout, causal, no debug mask.
        False,
        scale=layer.scale,
        # The kernel does not count the token itself.
        window_size_left=None if layer.window is None else layer.window - 1,
        window_size_right=None if layer.window is None else 0,
        seqused_k=None if key.shape[0] == 1 and key.requires_grad else bounds.used,
    )[0]
    return output


def _flatten_slots(held: Tensor) -> Tensor:
    """Return all slots as one long row of tokens, (tokens, heads, size), without copying."""
    slots, heads, _, size = held.shape
    if slots == 1:
        return held[0].transpose(0, 1)
    slot, head = held.stride(0) // size, held.stride(1) // size
    # Token t of head h lies at `t * size + h * stride`, so one view reaches the rows of all slots.
    return held.as_strided((slots * slot - (heads - 1) * head, heads, size), (size, held.stride(1), 1))


class RowMasks:
    """Which keys the queries of a row see, kept for the layers of a pass, which are mostly alike."""

    def __init__(self) -> None:
        self._masks: dict[tuple[LayerAttention, int, int, int], Tensor] = {}

    def get_mask(self, layer: LayerAttention, shared: int, count: int, columns: int, like: Tensor) -> Tensor:
        """Return what is added to the scores of `shared` times `count` queries: 0, or minus infinity."""
        found = self._masks.get((layer, shared, count, columns))
        if found is None:
            every = torch.arange(columns, device=like.device)
            seen = layer.mark_seen(every[columns - count :], every)
            hidden = torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(
                ~seen, -torch.inf
            )
            found = hidden.repeat(shared, 1)
            if found.numel() <= MAX_KEPT_MASK:
                self._masks[layer, shared, count, columns] = found
        return found


def attend_row(query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention, masks: RowMasks) -> Tensor:
    """Attend within one row, whose newest tokens are the queries: (heads, tokens, size) each.

    Returns (queries, heads, size).
    """
    heads, count, size = query.shape
    key_heads, columns, _ = key.shape
    shared = heads // key_heads
    if layer.is_plain and layer.sees_everything and count == columns:
        output = scaled_dot_product_attention(
            query[None],
            key[None],
            value[None],
            is_causal=count > 1,
            scale=layer.scale,
            enable_gqa=shared > 1,
        )[0]
        return output.transpose(0, 1)
    # The query heads that share a key head lie where further tokens would.
    grouped = query.reshape(1, key_heads, shared * count, size)
    mask = masks.get_mask(layer, shared, count, columns, query)
    if layer.is_plain:
        output = scaled_dot_product_attention(
            grouped, key[None], value[None], attn_mask=mask, scale=layer.scale
        )[0]
    else:
        output = _attend_unusually(grouped[0], key, value, mask, layer)
    return output.reshape(heads, count, value.shape[2]).transpose(0, 1)


def _attend_unusually(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, layer: LayerAttention
) -> Tensor:
    scale = query.shape[-1] ** -0.5 if layer.scale is None else layer.scale
    scores = (query @ key.transpose(1, 2)).float() * scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    scores = scores + mask
    if layer.sinks is not None:
        sinks = layer.sinks.float().reshape(key.shape[0], -1, 1)
        sinks = sinks.repeat_interleave(query.shape[1] // sinks.shape[1], 1)
        scores = torch.cat([scores, sinks], 2).softmax(-1)[..., :-1]
    else:
        scores = scores.softmax(-1)
    return scores.to(value.dtype) @ value


# Registration with the library

NAME = "agent2rl"


def attend_packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    packed: PackedRows | None = options.pop("packed", None)
    if packed is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    if query.is_cuda and torch.is_autocast_enabled("cuda"):
        # The library's rotation of queries and keys leaves them in float32.
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    return packed.attend(query[0], key, value, describe_layer(module, options))[None], None


def use_packed_attention(network: PreTrainedModel) -> None:
    """Let a model's layers attend by rows in packed passes; other passes stay as they are."""
    if network.config._attn_implementation in ("sdpa", "eager"):
        network.set_attn_implementation(NAME)


def describe_layer(module: nn.Module, options: Mapping[str, Any]) -> LayerAttention:
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    kind = "full_attention" if kinds is None or index is None else kinds[index]
    window = options.get("sliding_window")
    if window is None and kind == "sliding_attention":
        window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None) if kind == "chunked_attention" else None
    return LayerAttention(options.get("scaling"), window, chunk, options.get("softcap"), options.get("s_aux"))


AttentionInterface.register(NAME, attend_packed)
# Passes without packed rows get the masks of the library's own attention.
AttentionMaskInterface.register(NAME, sdpa_mask)
