"""The keys and values of a batch whose rows have different lengths.

All rows end at the same column, so padding is on the left and a step writes one column for all:

    column      0 1 2 3 4 5 6 | 7          `width` is 7: the next token goes to column 7
    row 0       a b c d e f g |            starts at 0
    row 1       . . . h i j k |            starts at 3; its token at column c has position c - 3

Rows of several batches can be joined and single rows can be kept and loaded again; both only copy. Memory is
taken in steps of COLUMNS, since most replies end long before they may.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

COLUMNS = 128


@dataclass(frozen=True)
class Prefix:
    """One row's tokens with their keys and values, each (heads, tokens, size), layer by layer."""

    tokens: list[int]
    layers: list[tuple[Tensor, Tensor]]

    def shared(self, tokens: list[int]) -> int:
        """How many tokens a text has in common with this one; at least one of its own is left to be fed."""
        most = min(len(self.tokens), len(tokens) - 1)
        if self.tokens[:most] == tokens[:most]:
            return most
        return next(index for index in range(most) if self.tokens[index] != tokens[index])


@dataclass
class _Span:
    """What all layers of a batch share."""

    width: int
    capacity: int
    fed: Tensor | None = None
    """While rows of different lengths are fed: which columns are tokens, (rows, 1, columns, 1)."""
    column: Tensor | None = None
    """While a graph is recorded: `width` as a tensor, so that the graph serves every step."""


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Unlike its parent, writes in place: a step costs one column, not a copy of everything."""

    keys: Any
    values: Any

    def __init__(self, span: _Span) -> None:
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
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, held: Tensor, new: Tensor) -> Tensor:
        span = self.span
        if span.column is not None:
            return held.index_copy_(2, span.column, new)
        end = span.width + new.shape[2]
        place = held[:, :, span.width : end]
        place.copy_(new if span.fed is None else torch.where(span.fed, new, place))
        return held[:, :, :end]

    def get_seq_length(self) -> int:
        return self.span.width

    def reserve(self, capacity: int) -> None:
        for name in ("keys", "values"):
            held = getattr(self, name)
            grown = held.new_zeros((*held.shape[:2], capacity, held.shape[3]))
            grown[:, :, : held.shape[2]] = held
            setattr(self, name, grown)


class Rows(Cache):
    layers: list[_Layer]  # type: ignore[assignment]

    def __init__(self, depth: int, starts: Tensor, width: int, capacity: int) -> None:
        self.starts = starts
        self.span = _Span(width, capacity)
        super().__init__(layers=[_Layer(self.span) for _ in range(depth)])

    @classmethod
    def load(
        cls, depth: int, device: torch.device, texts: Sequence[tuple[Prefix | None, int, int]]
    ) -> tuple["Rows", int]:
        """Rows about to be fed, and how many columns that takes.

        Each text is what is kept of it (or nothing), how many of those tokens to use, and how many are to be
        fed. A row's new tokens follow its old ones without a gap, so old ones may reach into the columns
        that others are fed in: `fed` protects them.
        """
        feeds = [fed for _, _, fed in texts]
        most = max(feeds)
        total = max(used + fed for _, used, fed in texts)
        starts = [total - used - fed for _, used, fed in texts]
        rows = cls(depth, torch.tensor(starts, device=device), total - most, _round_up(total))
        if min(feeds) < most:
            pads = most - torch.tensor(feeds, device=device)
            rows.span.fed = (torch.arange(most, device=device) >= pads[:, None])[:, None, :, None]
        for row, (prefix, used, _) in enumerate(texts):
            if prefix is not None and used:
                rows._place(row, starts[row], used, prefix)
        return rows, most

    def _place(self, row: int, start: int, used: int, prefix: Prefix) -> None:
        count = len(self.starts)
        for layer, (keys, values) in zip(self.layers, prefix.layers, strict=True):
            if layer.keys is None:
                layer.keys = keys.new_zeros((count, keys.shape[0], self.span.capacity, keys.shape[2]))
                layer.values = values.new_zeros((count, values.shape[0], self.span.capacity, values.shape[2]))
            layer.keys[row, :, start : start + used] = keys[:, :used]
            layer.values[row, :, start : start + used] = values[:, :used]

    @classmethod
    def join(cls, parts: Sequence[tuple["Rows", list[int]]]) -> "Rows":
        """One batch of the chosen rows, in order, without the columns that none of them needs."""
        chosen = [(rows, torch.tensor(picks, device=rows.starts.device)) for rows, picks in parts if picks]
        lengths = [rows.span.width - rows.starts[picks] for rows, picks in chosen]
        width = max(int(length.max()) for length in lengths)
        starts = width - torch.cat(lengths)
        joined = cls(len(chosen[0][0].layers), starts, width, _round_up(width))
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

    def row(self, row: int, tokens: list[int]) -> Prefix:
        """A copy of one row, whose tokens the caller knows."""
        place = (row, slice(None), slice(self.span.width - len(tokens), self.span.width))
        return Prefix(
            tokens, [(layer.keys[place].clone(), layer.values[place].clone()) for layer in self.layers]
        )

    def reserve(self, columns: int) -> bool:
        """Make room for more columns; whether that moved anything."""
        needed = self.span.width + columns
        if needed <= self.span.capacity:
            return False
        self.span.capacity = _round_up(needed)
        for layer in self.layers:
            layer.reserve(self.span.capacity)
        return True

    def advance(self, columns: int) -> None:
        self.span.width += columns
        self.span.fed = None

    def positions(self, columns: int) -> Tensor:
        """The position in its text of each token about to be fed."""
        return (self._columns(columns) - self.starts[:, None]).clamp(min=0)

    def present(self, columns: int) -> Tensor:
        """Which columns hold tokens once these are fed, (rows, columns)."""
        return torch.arange(self.span.width + columns, device=self.starts.device) >= self.starts[:, None]

    def mask(self, columns: int) -> Tensor:
        """What each token about to be fed may look at, (rows, 1, columns, all columns)."""
        now = self._columns(columns)[:, None]
        every = torch.arange(self.span.width + columns, device=self.starts.device)
        # Padding looks at itself alone: a softmax over nothing would be no number.
        seen = (every <= now) & (every >= self.starts[:, None, None]) | (every == now)
        return seen[:, None]

    def _columns(self, columns: int) -> Tensor:
        return torch.arange(self.span.width, self.span.width + columns, device=self.starts.device)


def _round_up(columns: int) -> int:
    return (columns // COLUMNS + 1) * COLUMNS
