"""The KV cache of a batch with rows of different lengths.

All rows end at the same column, so padding is on the left and a step writes one column for all:

    column      0 1 2 3 4 5 6 | 7          `width` is 7: the next token goes to column 7
    row 0       a b c d e f g |            starts at 0
    row 1       . . . h i j k |            starts at 3; its token at column c has position c - 3

Rows of several batches can be joined, and rows can be stored and loaded again; both only copy, many rows at
once: on a GPU a copy for each row and layer would take longer than the step. Memory is allocated in steps of
COLUMN_STEP, because most replies end long before their limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from agent2rl.engines.transformers.attention import RaggedBounds

COLUMN_STEP = 128
KEEP_WHOLE_SHARE = 0.75
"""If a larger share of a batch's rows is stored, the whole batch is stored."""


@dataclass(frozen=True, eq=False)
class CacheBlock:
    """Rows that are stored together: keys and values of each layer, (rows, heads, columns, size)."""

    layers: list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class CachedPrefix:
    """One row's tokens, and the location of their keys and values: block, row and first column."""

    tokens: list[int]
    block: CacheBlock
    row: int
    start: int

    def count_shared_tokens(self, tokens: list[int]) -> int:
        """Count the tokens of a common prefix; at least one token of the text is left to be fed."""
        most = min(len(self.tokens), len(tokens) - 1)
        if self.tokens[:most] == tokens[:most]:
            return most
        return next(index for index in range(most) if self.tokens[index] != tokens[index])


@dataclass
class _CacheSpan:
    """State that all layers of a batch share."""

    width: int
    capacity: int
    fed: Tensor | None = None
    """While rows of different lengths are fed: which columns are tokens, (rows, 1, columns, 1)."""
    column: Tensor | None = None
    """While a graph is recorded: `width` as a tensor, so that the graph serves every step."""


class _CacheLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Unlike its parent, writes in place: a step costs one column, not a copy of everything."""

    keys: Any
    values: Any

    def __init__(self, span: _CacheSpan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.span = span

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        if self.keys is None:
            self.keys, self.values = (
                new.new_zeros((*new.shape[:2], self.span.capacity, new.shape[3]))
                for new in (key_states, value_states)
            )
        return self._write_columns(self.keys, key_states), self._write_columns(self.values, value_states)

    def _write_columns(self, held: Tensor, new: Tensor) -> Tensor:
        span = self.span
        if span.column is not None:
            return held.index_copy_(2, span.column, new)
        end = span.width + new.shape[2]
        place = held[:, :, span.width : end]
        place.copy_(new if span.fed is None else torch.where(span.fed, new, place))
        return held[:, :, :end]

    def put_rows(self, rows: Tensor, keys: Tensor, values: Tensor, count: int) -> None:
        """Lay down these rows of `count`."""
        if len(rows) == count:  # all of them, in order
            self.keys, self.values = keys, values
            return
        if self.keys is None:
            self.keys, self.values = (new.new_zeros((count, *new.shape[1:])) for new in (keys, values))
        self.keys[rows], self.values[rows] = keys, values

    def get_seq_length(self) -> int:
        return self.span.width

    def grow_capacity(self, capacity: int) -> None:
        for name in ("keys", "values"):
            held = getattr(self, name)
            grown = held.new_zeros((*held.shape[:2], capacity, held.shape[3]))
            grown[:, :, : held.shape[2]] = held
            setattr(self, name, grown)


class BatchKVCache(Cache):
    layers: list[_CacheLayer]  # type: ignore[assignment]

    def __init__(self, depth: int, starts: Tensor, width: int, capacity: int) -> None:
        self.starts = starts
        self.span = _CacheSpan(width, capacity)
        super().__init__(layers=[_CacheLayer(self.span) for _ in range(depth)])

    @classmethod
    def from_prefixes(
        cls, depth: int, device: torch.device, texts: Sequence[tuple[CachedPrefix | None, int, int]]
    ) -> tuple["BatchKVCache", int]:
        """Return rows that are ready to be fed, and the number of columns to feed.

        Each text is its stored prefix (or None), how many of those tokens to use, and how many are to be fed.
        A row's new tokens follow its old ones without a gap, so old ones may reach into the columns in which
        others are fed: `fed` protects them.
        """
        feeds = [fed for _, _, fed in texts]
        most = max(feeds)
        total = max(used + fed for _, used, fed in texts)
        starts = [total - used - fed for _, used, fed in texts]
        rows = cls(depth, torch.tensor(starts, device=device), total - most, _round_up_columns(total))
        if min(feeds) < most:
            pads = most - torch.tensor(feeds, device=device)
            rows.span.fed = (torch.arange(most, device=device) >= pads[:, None])[:, None, :, None]
        rows._copy_prefixes(texts)
        return rows, most

    def _copy_prefixes(self, texts: Sequence[tuple[CachedPrefix | None, int, int]]) -> None:
        """Copy stored prefixes to the rows' starts; everything around them is masked or written later."""
        members: dict[CacheBlock, list[tuple[int, int, int]]] = {}
        for row, (prefix, used, _) in enumerate(texts):
            if prefix is not None and used:
                members.setdefault(prefix.block, []).append((row, prefix.row, prefix.start))
        columns = torch.arange(self.span.capacity, device=self.starts.device)
        for block, pairs in members.items():
            here, there, first = torch.tensor(pairs, device=self.starts.device).unbind(1)
            index = columns - (self.starts[here] - first)[:, None]
            for layer, (keys, values) in zip(self.layers, block.layers, strict=True):
                layer.put_rows(
                    here,
                    _gather_columns(keys, there, index),
                    _gather_columns(values, there, index),
                    len(texts),
                )

    @classmethod
    def concatenate_rows(cls, parts: Sequence[tuple["BatchKVCache", list[int]]]) -> "BatchKVCache":
        """Return one batch of the chosen rows, in order, without columns that none of them needs."""
        chosen = [(rows, torch.tensor(picks, device=rows.starts.device)) for rows, picks in parts if picks]
        lengths = [rows.span.width - rows.starts[picks] for rows, picks in chosen]
        width = max(int(length.max()) for length in lengths)
        starts = width - torch.cat(lengths)
        joined = cls(len(chosen[0][0].layers), starts, width, _round_up_columns(width))
        for index, layer in enumerate(joined.layers):
            for name in ("keys", "values"):
                first = getattr(chosen[0][0].layers[index], name)
                shape = (len(starts), first.shape[1], joined.span.capacity, first.shape[3])
                held = first.new_zeros(shape)
                row = 0
                for rows, picks in chosen:
                    used = min(width, rows.span.width)
                    source = getattr(rows.layers[index], name)[:, :, rows.span.width - used : rows.span.width]
                    held[row : row + len(picks), :, width - used : width] = source[picks]
                    row += len(picks)
                setattr(layer, name, held)
        return joined

    def extract_prefixes(self, ended: Sequence[tuple[int, int, list[int]]]) -> list[CachedPrefix]:
        """Store rows for later: each is its number, its end column (exclusive), and its tokens.

        Few rows are copied. If most are stored, the batch itself is kept and must not be used any more.
        """
        if not ended:
            return []
        places = [(row, end - len(text)) for row, end, text in ended]
        texts = [text for _, _, text in ended]
        if len(ended) > KEEP_WHOLE_SHARE * len(self.starts):
            block = CacheBlock([(layer.keys, layer.values) for layer in self.layers])
            pairs = zip(places, texts, strict=True)
            return [CachedPrefix(text, block, row, start) for (row, start), text in pairs]
        picks, starts = torch.tensor(places, device=self.starts.device).unbind(1)
        index = starts[:, None] + torch.arange(max(map(len, texts)), device=starts.device)
        block = CacheBlock(
            [
                (_gather_columns(layer.keys, picks, index), _gather_columns(layer.values, picks, index))
                for layer in self.layers
            ]
        )
        return [CachedPrefix(text, block, row, 0) for row, text in enumerate(texts)]

    def reserve_columns(self, columns: int) -> bool:
        """Make room for more columns; return whether memory was reallocated."""
        needed = self.span.width + columns
        if needed <= self.span.capacity:
            return False
        self.span.capacity = _round_up_columns(needed)
        for layer in self.layers:
            layer.grow_capacity(self.span.capacity)
        return True

    def advance_width(self, columns: int) -> None:
        self.span.width += columns
        self.span.fed = None

    def compute_positions(self, columns: int) -> Tensor:
        """Return the position of each token about to be fed."""
        return (self._list_new_columns(columns) - self.starts[:, None]).clamp(min=0)

    def mark_present_columns(self, columns: int) -> Tensor:
        """Return which columns hold tokens once these are fed, (rows, columns)."""
        return torch.arange(self.span.width + columns, device=self.starts.device) >= self.starts[:, None]

    def build_attention_mask(self, columns: int) -> Tensor:
        """Return what each token about to be fed attends to, (rows, 1, columns, all columns)."""
        now = self._list_new_columns(columns)[:, None]
        every = torch.arange(self.span.width + columns, device=self.starts.device)
        # Padding attends to itself alone, because a softmax over nothing would be NaN.
        seen = (every <= now) & (every >= self.starts[:, None, None]) | (every == now)
        return seen[:, None]

    def ragged_bounds(self, columns: int) -> RaggedBounds:
        """Return the attention mask as bounds."""
        width = self.span.width + columns
        return RaggedBounds(self.starts, (width - self.starts).int(), columns, width)

    def ragged_bounds_at(self, column: Tensor) -> RaggedBounds:
        """Return the bounds of a recorded step of one token, at a column given as a tensor."""
        return RaggedBounds(self.starts, (column + 1 - self.starts).int(), 1, self.span.capacity)

    def _list_new_columns(self, columns: int) -> Tensor:
        return torch.arange(self.span.width, self.span.width + columns, device=self.starts.device)


def _gather_columns(held: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Gather columns, which may differ per row, of some rows; columns out of range have any value."""
    _, heads, width, size = held.shape
    first = rows[:, None] * heads + torch.arange(heads, device=held.device)
    index = first[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    # One index per vector is several times as fast as an index per axis.
    picked = held.reshape(-1, size).index_select(0, index.flatten())
    return picked.view(*index.shape, size)


def _round_up_columns(columns: int) -> int:
    return (columns // COLUMN_STEP + 1) * COLUMN_STEP
