"""Attention over packed rows: the new tokens of all rows lie in one sequence, without padding.

A pass of the network reads one sequence, (1, tokens), in which the tokens of one row follow those of the
last. Only attention knows where rows begin and end. `CachedRows` attend to their slots of the KV cache, too;
`PackedSequences` attend to nothing else and can be trained. On a GPU, one flash kernel takes the bounds of
all rows. On CPU, and for what the kernel cannot do, rows are attended to one by one, except those with one
new token: of these, slots that lie next to each other are one batch.

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
MAX_IDLE_GAP = 3
"""Slots of a decode step are one batch if at most so many idle ones lie between two of them."""


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


# Rows with a KV cache


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


@dataclass
class CachedRows:
    """Rows whose keys and values are in the slots of a cache: (slots, heads, columns, size)."""

    slots: Sequence[int]
    """In ascending order."""
    lengths: Sequence[int]
    """Tokens of each row in the cache before this pass."""
    counts: Sequence[int]
    """New tokens of each row."""
    device: torch.device
    by_flash_kernel: bool = True
    """Whether the flash kernel did all layers so far; only then a decode step can be recorded."""
    _segments: "dict[LayerAttention, list[_SlotSegment]]" = field(default_factory=dict)
    _masks: "RowMasks" = field(default_factory=lambda: RowMasks())

    @cached_property
    def positions(self) -> Tensor:
        """The position of each new token in its row, (tokens)."""
        return torch.tensor(
            [
                position
                for length, count in zip(self.lengths, self.counts, strict=True)
                for position in range(length, length + count)
            ],
            device=self.device,
        )

    @cached_property
    def token_slots(self) -> Tensor:
        """The slot of each new token, (tokens)."""
        slots = torch.tensor(self.slots, device=self.device)
        if all(count == 1 for count in self.counts):
            return slots
        return slots.repeat_interleave(torch.tensor(self.counts, device=self.device))

    @cached_property
    def last_tokens(self) -> Tensor:
        """Where each row's last token is among all, (rows)."""
        return torch.tensor(self.counts, device=self.device).cumsum(0) - 1

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        if can_use_flash_kernel(key, layer):
            return attend_by_flash_kernel(query, key, value, self._flash_bounds(key), layer)
        self.by_flash_kernel = False
        decoding = self._decoding if layer.is_plain else None
        if decoding and len(decoding.slots) == len(self.slots):
            return self._attend_one_token_each(query, key, value, layer)
        output = query.new_empty((query.shape[1], query.shape[0], value.shape[3]))
        first = 0
        for slot, length, count in zip(self.slots, self.lengths, self.counts, strict=True):
            columns = length + count
            if count > 1 or decoding is None:
                output[first : first + count] = attend_row(
                    query[:, first : first + count],
                    key[slot, :, :columns],
                    value[slot, :, :columns],
                    layer,
                    self._masks,
                )
            first += count
        if decoding:
            output[decoding.tokens] = self._attend_one_token_each(
                query[:, decoding.tokens], key, value, layer
            )
        return output

    @cached_property
    def _decoding(self) -> "_DecodingRows | None":
        """The rows with one new token; None if there are none."""
        rows = [row for row, count in enumerate(self.counts) if count == 1]
        if not rows:
            return None
        return _DecodingRows(
            self.last_tokens[torch.tensor(rows, device=self.device)],
            [self.slots[row] for row in rows],
            [self.lengths[row] for row in rows],
        )

    def _flash_bounds(self, key: Tensor) -> FlashBounds:
        if "bounds" not in self.__dict__:
            row = key.stride(0) // key.shape[3]
            lengths = torch.tensor([self.lengths, self.counts, self.slots], device=self.device)
            ends = lengths[1].cumsum(0)
            self.__dict__["bounds"] = FlashBounds(
                torch.cat([ends.new_zeros(1), ends]).int(),
                torch.cat([lengths[2] * row, ends.new_zeros(1)]).int(),
                (lengths[0] + lengths[1]).int(),
                max(self.counts),
                max(map(sum, zip(self.lengths, self.counts, strict=True))),
            )
        bounds: FlashBounds = self.__dict__["bounds"]
        return bounds

    def _attend_one_token_each(
        self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention
    ) -> Tensor:
        """Attend with one new token per row, for neighbouring slots at a time."""
        heads, _, size = query.shape
        key_heads = key.shape[1]
        queries = query.transpose(0, 1).reshape(-1, key_heads, heads // key_heads, size)
        outputs = []
        for segment in self._find_segments(layer, query.dtype):
            first, last = segment.slots
            output = scaled_dot_product_attention(
                segment.spread(queries),
                key[first:last, :, : segment.columns],
                value[first:last, :, : segment.columns],
                attn_mask=segment.mask,
                scale=layer.scale,
            )
            outputs.append(segment.gather(output))
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined.reshape(-1, heads, value.shape[3])

    def _find_segments(self, layer: LayerAttention, dtype: torch.dtype) -> "list[_SlotSegment]":
        if layer not in self._segments:
            assert self._decoding is not None
            slots = self._decoding.slots
            segments, first = [], 0
            for place in range(1, len(slots) + 1):
                if place == len(slots) or slots[place] - slots[place - 1] > MAX_IDLE_GAP:
                    segments.append(self._build_segment(self._decoding, first, place, layer, dtype))
                    first = place
            self._segments[layer] = segments
        return self._segments[layer]

    def _build_segment(
        self, rows: "_DecodingRows", first: int, last: int, layer: LayerAttention, dtype: torch.dtype
    ) -> "_SlotSegment":
        low, high = rows.slots[first], rows.slots[last - 1] + 1
        columns = max(rows.lengths[first:last]) + 1
        newest = torch.zeros(high - low, dtype=torch.long)  # idle slots attend to their first column
        chosen = torch.tensor(rows.slots[first:last]) - low
        newest[chosen] = torch.tensor(rows.lengths[first:last])
        seen = layer.mark_seen(newest[:, None], torch.arange(columns))[:, None]
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)
        dense = last - first == high - low
        return _SlotSegment(
            (first, last),
            (low, high),
            None if dense else chosen.to(self.device),
            columns,
            mask.to(self.device),
        )


@dataclass(frozen=True)
class _DecodingRows:
    """The rows of a pass with one new token."""

    tokens: Tensor
    """Where these tokens are among all."""
    slots: Sequence[int]
    lengths: Sequence[int]


@dataclass(frozen=True)
class _SlotSegment:
    """Neighbouring slots of a decode step, as one batch."""

    rows: tuple[int, int]
    slots: tuple[int, int]
    chosen: Tensor | None
    """Which of the slots have a row; None if all have."""
    columns: int
    mask: Tensor

    def spread(self, queries: Tensor) -> Tensor:
        """Return a query for each slot."""
        own = queries[self.rows[0] : self.rows[1]]
        if self.chosen is None:
            return own
        return own.new_zeros((self.slots[1] - self.slots[0], *own.shape[1:])).index_copy_(0, self.chosen, own)

    def gather(self, output: Tensor) -> Tensor:
        return output if self.chosen is None else output.index_select(0, self.chosen)


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
        False,
        scale=layer.scale,
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
    return packed.attend(query[0], key, value, _describe_layer(module, options))[None], None


def use_packed_attention(network: PreTrainedModel) -> None:
    """Let a model's layers attend by rows in packed passes; other passes stay as they are."""
    if network.config._attn_implementation in ("sdpa", "eager"):
        network.set_attn_implementation(NAME)


def _describe_layer(module: nn.Module, options: Mapping[str, Any]) -> LayerAttention:
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    kind = "full_attention" if kinds is None or index is None else kinds[index]
    window = options.get("sliding_window")
    if window is None and kind == "sliding_attention":
        window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None) if kind == "chunked_attention" else None
    return LayerAttention(options.get("scaling"), window, chunk, options.get("softcap"), options.get("s_aux"))


AttentionInterface.register(NAME, attend_packed)
AttentionMaskInterface.register(NAME, sdpa_mask)
