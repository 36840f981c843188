"""The KV cache: one allocation with a slot for each text, which stays there for its whole life.

    slot 0      a b c d e . . .       holds 5 tokens; its next token goes to column 5
    slot 1      h i . . . . . .       holds 2 tokens
    slot 2      . . . . . . . .       free

A conversation keeps its slot between turns, so that nothing is copied. A pass writes new tokens behind those
of their slots; what lies behind a slot's tokens is never attended to. The allocation grows when more slots or
columns are needed, which copies everything once and invalidates recorded graphs (`version`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from agent2rl.engines.transformers.cached_rows import CachedRows

COLUMN_STEP = 128


@dataclass(eq=False)
class CacheSlot:
    """The tokens of a text whose keys and values are in the cache; none if it lost its slot."""

    index: int
    tokens: list[int] = field(default_factory=list)

    def count_shared_tokens(self, tokens: Sequence[int]) -> int:
        """Count the tokens of a common prefix; at least one token of the text is left to be fed."""
        most = min(len(self.tokens), len(tokens) - 1)
        # Mostly a text goes on where it ended, and whole lists compare fast.
        if self.tokens[:most] == tokens[:most]:
            return most
        return next(place for place in range(most) if self.tokens[place] != tokens[place])


@dataclass
class _CacheShape:
    """State that all layers share."""

    slots: int = 0
    columns: int = 0
    token_slots: Any = None
    """The slot and the column of each token of the current pass."""
    token_columns: Any = None


class _SlotLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, (slots, heads, columns, size)."""

    keys: Any
    values: Any

    def __init__(self, shape: _CacheShape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shape = shape

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        return self.write(key_states[0].transpose(0, 1), value_states[0].transpose(0, 1))

    def write(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of the pass's tokens, (tokens, heads, size), and return those of all slots."""
        shape = self.shape
        if self.keys is None:
            self.keys, self.values = (
                new.new_zeros((shape.slots, new.shape[1], shape.columns, new.shape[2]))
                for new in (keys, values)
            )
        for held, new in ((self.keys, keys), (self.values, values)):
            held[shape.token_slots, :, shape.token_columns] = new.to(held.dtype)
        return self.keys, self.values

    def grow(self) -> None:
        if self.keys is None:
            return
        for name in ("keys", "values"):
            held = getattr(self, name)
            grown = held.new_zeros((self.shape.slots, held.shape[1], self.shape.columns, held.shape[3]))
            grown[: held.shape[0], :, : held.shape[2]] = held
            setattr(self, name, grown)

    def get_seq_length(self) -> int:
        return 0  # positions are given explicitly


class SlotKVCache(Cache):
    """Slots for texts. The last one is for rows that only fill up a recorded batch."""

    layers: list[_SlotLayer]  # type: ignore[assignment]

    def __init__(self, depth: int, context: int) -> None:
        self.version = 0
        """Changes when the memory moves."""
        self._context = context
        self._shape = _CacheShape()
        self._free: list[int] = []
        self._held: dict[int, CacheSlot] = {}
        super().__init__(layers=[_SlotLayer(self._shape) for _ in range(depth)])

    @property
    def columns(self) -> int:
        return self._shape.columns

    @property
    def is_filled(self) -> bool:
        """Whether the memory is allocated: the first pass does that, layer by layer."""
        return self.layers[-1].keys is not None

    @property
    def spare_slot(self) -> int:
        return self._shape.slots - 1

    def count_held_slots(self) -> int:
        return len(self._held)

    def count_tokens(self, slots: int, columns: int) -> int:
        """Return the tokens for which memory would be allocated if so many slots and columns are needed."""
        return max(slots + 1, self._shape.slots) * max(columns, self._shape.columns)

    def has_room(self, slots: int, columns: int) -> bool:
        """Return whether so many slots with so many columns are allocated, and recorded graphs stay valid."""
        return slots < self._shape.slots and columns <= self._shape.columns

    def reserve(self, slots: int, columns: int, most_tokens: int) -> None:
        """Allocate at least so many slots for texts of so many tokens.

        Some more are allocated within `most_tokens`, because conversations grow and others begin.
        """
        if self.has_room(slots, columns):
            return
        shape = self._shape
        before = shape.slots
        slots, columns = max(slots + 1, shape.slots), max(columns, shape.columns)
        roomy = min(columns + columns // 4, self._context) // COLUMN_STEP * COLUMN_STEP + COLUMN_STEP
        if slots * roomy <= most_tokens:
            columns = max(columns, roomy)
        shape.slots, shape.columns = slots, columns
        self.version += 1
        for layer in self.layers:
            layer.grow()
        self._free += range(max(0, before - 1), slots - 1)
        self._free.sort(reverse=True)

    def take_slot(self) -> CacheSlot:
        """Take a free slot, the lowest, so that slots in use lie together."""
        slot = CacheSlot(self._free.pop())
        self._held[slot.index] = slot
        return slot

    def release_slot(self, slot: CacheSlot) -> None:
        if self._held.pop(slot.index, None) is slot:
            self._free.append(slot.index)
            self._free.sort(reverse=True)
        slot.index, slot.tokens = -1, []

    def copy_prefix(self, source: CacheSlot, targets: Sequence[CacheSlot], count: int) -> None:
        """Copy the first tokens of a slot to other slots."""
        device = self.layers[0].keys.device
        indices = torch.tensor([target.index for target in targets], device=device)
        for layer in self.layers:
            for held in (layer.keys, layer.values):
                # A copy first, because the source is in the same tensor as its targets.
                held[indices, :, :count] = held[source.index, :, :count].clone()
        for target in targets:
            target.tokens = source.tokens[:count]

    def start_pass(self, token_slots: Tensor, token_columns: Tensor) -> None:
        """Say where the tokens of the next pass are written."""
        self._shape.token_slots, self._shape.token_columns = token_slots, token_columns

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of the pass's tokens, (tokens, heads, size); return those of all slots."""
        return self.layers[layer].write(keys, values)

    def start_rows(self, rows: CachedRows) -> None:
        self.start_pass(rows.token_slots, rows.positions)

    def clear(self) -> None:
        """Free all memory; every slot is lost."""
        for slot in list(self._held.values()):
            slot.index, slot.tokens = -1, []
        self._held, self._free = {}, []
        self._shape.slots = self._shape.columns = 0
        self._shape.token_slots = self._shape.token_columns = None
        self.version += 1
        for layer in self.layers:
            layer.keys = layer.values = None

    @property
    def allocated_bytes(self) -> int:
        return sum(
            held.numel() * held.element_size()
            for layer in self.layers
            for held in (layer.keys, layer.values)
            if held is not None
        )
