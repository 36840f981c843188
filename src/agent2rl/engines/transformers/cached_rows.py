"""Attention of rows with a KV cache: each row's new tokens attend to what its slot holds.

On a GPU, one flash kernel takes the bounds of all rows. On CPU, and for what the kernel cannot do, slots of
rows with one new token that lie next to each other are one batch. Other rows are attended to one by one.
Small passes are mostly overhead, so what all layers have in common is planned once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agent2rl.engines.transformers.attention import (
    FlashBounds,
    LayerAttention,
    RowMasks,
    attend_by_flash_kernel,
    attend_row,
    can_use_flash_kernel,
)

SEGMENT_COLUMNS = 200
"""A batch of its own costs about as much as reading so many columns of a slot that nobody needs."""
MAX_SHORT_ROW = 64
"""New tokens of a row up to which its mask is cut out of a common one."""


@dataclass
class CachedRows:
    """Rows whose keys and values are in the slots of a cache: (slots, heads, columns, size).

    In a pass, rows with one new token come first, in the order of their slots; then come the others.
    """

    slots: Sequence[int]
    lengths: Sequence[int]
    """Tokens of each row in the cache before this pass."""
    counts: Sequence[int]
    """New tokens of each row."""
    device: torch.device
    by_flash_kernel: bool = True
    """Whether the flash kernel did all layers so far; only then a decode step can be recorded."""
    _plans: "dict[tuple[LayerAttention, int, torch.dtype], _AttentionPlan]" = field(default_factory=dict)
    _masks: RowMasks = field(default_factory=RowMasks)

    @cached_property
    def order(self) -> list[int]:
        """The rows in the order of the pass."""
        return sorted(range(len(self.slots)), key=lambda row: (self.counts[row] > 1, self.slots[row]))

    @cached_property
    def positions(self) -> Tensor:
        """The position of each new token in its row, (tokens)."""
        return torch.tensor(
            [
                position
                for row in self.order
                for position in range(self.lengths[row], self.lengths[row] + self.counts[row])
            ],
            device=self.device,
        )

    @cached_property
    def token_slots(self) -> Tensor:
        """The slot of each new token, (tokens)."""
        return torch.tensor(
            [slot for row in self.order for slot in (self.slots[row],) * self.counts[row]],
            device=self.device,
        )

    @cached_property
    def last_tokens(self) -> Tensor:
        """Where each row's last token is in the pass, (rows): in the order in which the rows were given."""
        last, end = [0] * len(self.order), 0
        for row in self.order:
            end += self.counts[row]
            last[row] = end - 1
        return torch.tensor(last, device=self.device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        if can_use_flash_kernel(key, layer):
            return attend_by_flash_kernel(query, key, value, self._flash_bounds(key), layer)
        self.by_flash_kernel = False
        if not layer.is_plain:
            return torch.cat(
                [self._attend_row(query, key, value, layer, row) for row in self._place_rows(self.order)]
            )
        heads, tokens, size = query.shape
        key_heads = key.shape[1]
        shared = heads // key_heads
        plan = self._get_plan(layer, shared, query.dtype)
        queries = query.transpose(0, 1).reshape(tokens, key_heads, shared, size)
        # (tokens times shared, key_heads, size) each: so the kernel leaves them in memory
        outputs = plan.attend_segments(queries, key, value, layer)
        outputs += plan.attend_short_rows(queries, key, value, layer)
        for row in plan.long_rows:
            output = self._attend_row(query, key, value, layer, row)
            outputs.append(output.reshape(len(output), key_heads, shared, -1).transpose(1, 2).flatten(0, 1))
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        joined = joined.reshape(-1, shared, key_heads, value.shape[3])
        if plan.gather is not None:
            joined = joined.index_select(0, plan.gather)
        result: Tensor = joined.transpose(1, 2).reshape(tokens, heads, value.shape[3])
        return result

    def _attend_row(
        self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention, row: "_PlacedRow"
    ) -> Tensor:
        return attend_row(
            query[:, row.first : row.last],
            key[row.slot, :, : row.columns],
            value[row.slot, :, : row.columns],
            layer,
            self._masks,
        )

    def _place_rows(self, rows: Sequence[int], first: int = 0) -> "Iterator[_PlacedRow]":
        """Yield where these rows are, which follow each other from a token of the pass on."""
        for row in rows:
            last = first + self.counts[row]
            yield _PlacedRow(self.slots[row], first, last, self.lengths[row] + self.counts[row])
            first = last

    def _get_plan(self, layer: LayerAttention, shared: int, dtype: torch.dtype) -> "_AttentionPlan":
        if (layer, shared, dtype) not in self._plans:
            decoding = sum(count == 1 for count in self.counts)
            decoded = list(self._place_rows(self.order[:decoding]))
            others = list(self._place_rows(self.order[decoding:], decoding))
            self._plans[layer, shared, dtype] = _AttentionPlan.build(
                decoded, others, layer, shared, dtype, self.device
            )
        return self._plans[layer, shared, dtype]

    def _flash_bounds(self, key: Tensor) -> FlashBounds:
        # Cached by hand, because it depends on how the keys lie in memory, which all layers share.
        if "bounds" not in self.__dict__:
            row = key.stride(0) // key.shape[3]
            lengths = torch.tensor(
                [[numbers[row] for row in self.order] for numbers in (self.lengths, self.counts, self.slots)],
                device=self.device,
            )
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


@dataclass(frozen=True)
class _PlacedRow:
    slot: int
    first: int
    """Its first token in the pass."""
    last: int
    """The end of its tokens in the pass."""
    columns: int
    """Its tokens in the cache, the new ones included."""


@dataclass(frozen=True)
class _SlotSegment:
    """Neighbouring slots of rows with one new token, as one batch."""

    slots: slice
    queries: slice
    """Which of the spread queries are theirs."""
    columns: int
    mask: Tensor


@dataclass(frozen=True)
class _ShortRow:
    row: _PlacedRow
    queries: slice
    """Its tokens times the heads that share a key head."""
    mask: Tensor


@dataclass(frozen=True)
class _AttentionPlan:
    """What the layers of a pass with the same kind of attention share."""

    decoding: int
    """Rows with one new token."""
    spread: Tensor | None
    """Whose query each slot of the segments takes; None if no slot of them is idle."""
    gather: Tensor | None
    """Where each token's output is among those of all segments and rows; None if they are in order."""
    segments: Sequence[_SlotSegment]
    short_rows: Sequence[_ShortRow]
    long_rows: Sequence[_PlacedRow]

    @classmethod
    def build(
        cls,
        decoded: Sequence[_PlacedRow],
        others: Sequence[_PlacedRow],
        layer: LayerAttention,
        shared: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "_AttentionPlan":
        groups = list(_group_neighbours(decoded))
        # Idle slots between those of a group get the query of the row before them; its output is ignored.
        spread = [
            row.first
            for group in groups
            for row, following in zip(group, [*group[1:], group[-1]], strict=True)
            for _ in range(max(1, following.slot - row.slot))
        ]
        short = [row for row in others if _is_short(row, layer)]
        long = [row for row in others if not _is_short(row, layer)]
        places = [place for place, first in enumerate(spread) if place == 0 or spread[place - 1] != first]
        end = len(spread)
        place_of = {}
        for row in (*short, *long):
            place_of[row.first] = end
            end += row.last - row.first
        for row in others:
            places += range(place_of[row.first], place_of[row.first] + row.last - row.first)
        return cls(
            len(decoded),
            None if len(spread) == len(decoded) else torch.tensor(spread, device=device),
            None if places == list(range(end)) else torch.tensor(places, device=device),
            list(_build_segments(groups, [decoded[first].columns for first in spread], layer, dtype, device)),
            list(_build_short_rows(short, len(decoded), layer, shared, dtype, device)),
            long,
        )

    def attend_segments(
        self, queries: Tensor, key: Tensor, value: Tensor, layer: LayerAttention
    ) -> list[Tensor]:
        """Return (queries, key_heads, size) of each segment, idle slots included."""
        spread = queries if self.spread is None else queries.index_select(0, self.spread)
        outputs = []
        for segment in self.segments:
            output = scaled_dot_product_attention(
                spread[segment.queries],
                key[segment.slots, :, : segment.columns],
                value[segment.slots, :, : segment.columns],
                attn_mask=segment.mask,
                scale=layer.scale,
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return outputs

    def attend_short_rows(
        self, queries: Tensor, key: Tensor, value: Tensor, layer: LayerAttention
    ) -> list[Tensor]:
        """Return (queries, key_heads, size) of each row with a few new tokens."""
        if not self.short_rows:
            return []
        # The query heads that share a key head lie where further tokens would.
        grouped = queries[self.decoding :].transpose(0, 1).flatten(1, 2)[None]
        outputs = []
        for short in self.short_rows:
            slot, columns = short.row.slot, short.row.columns
            output = scaled_dot_product_attention(
                grouped[:, :, short.queries],
                key[slot : slot + 1, :, :columns],
                value[slot : slot + 1, :, :columns],
                attn_mask=short.mask,
                scale=layer.scale,
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return outputs


def _group_neighbours(rows: Sequence[_PlacedRow]) -> Iterator[list[_PlacedRow]]:
    """Yield rows whose slots are worth reading as one batch, as many columns of each as the longest has."""
    group: list[_PlacedRow] = []
    columns = slots = 0
    for row in rows:
        longest = max(columns, row.columns)
        gap = row.slot - group[-1].slot - 1 if group else 0
        # Columns read for nothing: those of idle slots in between, those that the group's other
        # slots would get in addition, and those that this row would.
        unneeded = gap * longest + slots * (longest - columns) + longest - row.columns
        if group and unneeded > SEGMENT_COLUMNS:
            yield group
            group, slots, gap, longest = [], 0, 0, row.columns
        group.append(row)
        slots += gap + 1
        columns = longest
    if group:
        yield group


def _build_segments(
    groups: Sequence[Sequence[_PlacedRow]],
    columns: Sequence[int],
    layer: LayerAttention,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[_SlotSegment]:
    """Build a segment for each group; `columns` are those that the query of each slot sees."""
    if not groups:
        return
    newest = torch.tensor(columns)[:, None] - 1
    seen = layer.mark_seen(newest, torch.arange(max(columns)))[:, None]
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf).to(device)
    first = 0
    for group in groups:
        low, high = group[0].slot, group[-1].slot + 1
        last = first + high - low
        longest = max(row.columns for row in group)
        queries = slice(first, last)
        yield _SlotSegment(slice(low, high), queries, longest, mask[queries, ..., :longest])
        first = last


def _is_short(row: _PlacedRow, layer: LayerAttention) -> bool:
    """Check whether a row continues a text with a few tokens, under a mask that depends on distance only."""
    count = row.last - row.first
    return count < row.columns and count <= MAX_SHORT_ROW and layer.chunk is None


def _build_short_rows(
    rows: Sequence[_PlacedRow],
    first: int,
    layer: LayerAttention,
    shared: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[_ShortRow]:
    """Cut the mask of each row out of one that fits all."""
    if not rows:
        return
    count = max(row.last - row.first for row in rows)
    before = max(row.columns - row.last + row.first for row in rows)
    every = torch.arange(before + count)
    seen = layer.mark_seen(every[before:], every).repeat_interleave(shared, 0)
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf).to(device)
    for row in rows:
        count = row.last - row.first
        yield _ShortRow(
            row,
            slice((row.first - first) * shared, (row.last - first) * shared),
            mask[: count * shared, before - row.columns + count : before + count],
        )
