"""One pass of the network over packed rows: from the new tokens of each row to the logits of the next.

On CUDA a decode step, from the last token of each row to the choice of the next, is recorded once for each
batch size as a graph and replayed for the life of the cache: a model of half a billion parameters otherwise
spends most of a step launching some thousand small kernels. The graph keeps tokens, lengths and choices on
the device, so that several steps run without the host.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agent2rl.core.errors import GradingError
from agent2rl.engines.transformers.attention import (
    CachedRows,
    FlashBounds,
    LayerAttention,
    PackedRows,
    PackedSequences,
    attend_by_flash_kernel,
)
from agent2rl.engines.transformers.decode_kernel import attend_with_split_keys, can_split_keys
from agent2rl.engines.transformers.kv_cache import CacheSlot, SlotKVCache
from agent2rl.engines.transformers.loading import LoadedModel
from agent2rl.engines.transformers.token_choice import choose_tokens, compute_token_offsets

MAX_ERROR_CHARACTERS = 200
"""Maximum characters of the library's error that are shown; it is about shapes, never about the text."""
KEPT_CACHE_SHARE = 0.2
"""The share of a GPU's memory that a cache may keep while the model is trained."""


class ForwardPass:
    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.cache = SlotKVCache(model.depth, model.context)
        self.graphs = DecodeGraphs(self) if can_record_graphs(model) else None
        self.choose_tokens = choose_tokens
        """Chooses the tokens of a recorded step; training puts a compiled one in its place."""

    def feed_slots(self, slots: Sequence[CacheSlot], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Append these tokens to the slots, which are in ascending order; return the logits after the last
        of each, (slots, vocabulary)."""
        rows = CachedRows(
            [slot.index for slot in slots],
            [len(slot.tokens) for slot in slots],
            [len(fed) for fed in tokens],
            self.model.device,
        )
        ids = torch.tensor([token for fed in tokens for token in fed], device=self.model.device)
        self.cache.start_rows(rows)
        logits = self.call_network(ids, rows.positions, rows, self.cache, rows.last_tokens)
        for slot, fed in zip(slots, tokens, strict=True):
            slot.tokens.extend(fed)
        if not rows.by_flash_kernel:
            self.graphs = None  # a recorded step knows no other attention
        return logits

    def read_texts(self, texts: Sequence[Sequence[int]], keep: Tensor) -> Tensor:
        """Read whole texts without a cache; return the logits after the tokens `keep`, of all in a row."""
        rows = PackedSequences([len(text) for text in texts], self.model.device)
        ids = torch.tensor([token for text in texts for token in text], device=self.model.device)
        return self.call_network(ids, rows.positions, rows, None, keep)

    def release_large_cache(self) -> None:
        """Release the cache if its memory is needed elsewhere; a small one is kept for the next use."""
        if self.model.device.type == "cuda":
            _, total = torch.cuda.mem_get_info()
            if self.cache.allocated_bytes > KEPT_CACHE_SHARE * total:
                self.release_memory()

    def release_memory(self) -> None:
        """Release the cache and all graphs."""
        self.cache.clear()
        if self.graphs:
            self.graphs.clear()
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def call_network(
        self, ids: Tensor, positions: Tensor, rows: PackedRows, cache: SlotKVCache | None, keep: Tensor
    ) -> Tensor:
        """Return the logits after the tokens `keep` of one packed pass, (kept, vocabulary)."""
        # Ended rows go on within a recorded batch; their output is ignored.
        positions = positions.clamp(max=self.model.context - 1)
        try:
            return call_packed_network(self.model.network, ids, positions, rows, cache, keep)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            message = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
            raise GradingError(
                f"The model fails on its input: {type(error).__name__}: {message}",
                "Compare config.json with the base model's.",
            ) from error


def call_packed_network(
    network: PreTrainedModel,
    ids: Tensor,
    positions: Tensor,
    rows: PackedRows,
    cache: SlotKVCache | None,
    keep: Tensor,
) -> Tensor:
    """Return the logits after the tokens `keep` of one packed pass, (kept, vocabulary)."""
    first = network not in _checked_networks
    counted = _CountedRows(rows) if first else rows
    output = network(
        input_ids=ids[None],
        # A mask with four axes is passed on as it is, so that the library builds none.
        attention_mask=_get_placeholder_mask(ids.device),
        position_ids=positions[None],
        past_key_values=cache,
        use_cache=cache is not None,
        logits_to_keep=keep,
        packed=counted,
    )
    if (
        isinstance(counted, _CountedRows)
        and counted.calls < network.config.get_text_config().num_hidden_layers
    ):
        raise GradingError(
            f"Models of type {network.config.model_type} are not supported: their attention would mix the "
            "texts of a batch.",
            "Use a model whose attention transformers can replace, or another engine.",
        )
    _checked_networks.add(network)
    logits: Tensor = output.logits
    return logits[0]


_checked_networks: WeakSet[PreTrainedModel] = WeakSet()
"""Networks in which every layer is known to attend by rows."""


class _CountedRows:
    """Counts the layers whose attention looks at the rows."""

    def __init__(self, rows: PackedRows) -> None:
        self.calls = 0
        self._rows = rows

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        self.calls += 1
        return self._rows.attend(query, key, value, layer)


_placeholders: dict[torch.device, Tensor] = {}


def _get_placeholder_mask(device: torch.device) -> Tensor:
    if device not in _placeholders:
        _placeholders[device] = torch.zeros((1, 1, 1, 1), device=device)
    return _placeholders[device]


# Recorded decode steps

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)


def can_record_graphs(model: LoadedModel) -> bool:
    return model.device.type == "cuda" and model.network.dtype in (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class DecodeRow:
    """A row of a batch that is being decoded."""

    slot: CacheSlot
    token: int
    """The last token, which is not in the cache yet."""
    key: int
    """Of its random numbers."""
    step: int
    """Number of tokens of the reply so far."""


class _RecordedRows:
    """Rows of a recorded step: one new token each, with bounds as tensors."""

    def __init__(self, slots: Tensor, lengths: Tensor, cache: SlotKVCache) -> None:
        self._slots, self._lengths, self._columns = slots, lengths, cache.columns
        self._bounds: FlashBounds | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        if layer.sees_everything and can_split_keys(query, key):
            return attend_with_split_keys(query, key, value, self._slots, self._lengths + 1, layer.scale)
        if self._bounds is None:
            rows = len(self._slots)
            offsets = self._slots * (key.stride(0) // key.shape[3])
            self._bounds = FlashBounds(
                torch.arange(rows + 1, device=key.device, dtype=torch.int32),
                torch.cat([offsets, offsets.new_zeros(1)]).int(),
                (self._lengths + 1).int(),
                1,
                self._columns,
            )
        return attend_by_flash_kernel(query, key, value, self._bounds, layer)


class DecodeGraphs:
    """Recorded decode steps of all batch sizes that were needed so far."""

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward
        self._graphs: dict[tuple[int, bool], _DecodeGraph] = {}
        self._version = -1
        self._pool: Any = None

    def decode_steps(
        self, rows: Sequence[DecodeRow], temperature: float, steps: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return the next tokens of each row and their log-probabilities, (steps, rows)."""
        cache = self._forward.cache
        if self._version != cache.version:
            self.clear()
            self._version = cache.version
        size = next((size for size in BATCH_SIZES if size >= len(rows)), len(rows))
        graph = self._graphs.get((size, temperature > 0))
        if graph is None:
            graph = _DecodeGraph(self._forward, size, temperature > 0, self._pool)
            self._pool = self._pool or graph.graph.pool()
            self._graphs[size, temperature > 0] = graph
        return graph.run(rows, temperature, steps)

    def clear(self) -> None:
        self._graphs, self._pool = {}, None


MAX_STEPS = 16
"""Steps between two looks of the host."""


class _DecodeGraph:
    def __init__(self, forward: ForwardPass, size: int, sampled: bool, pool: Any) -> None:
        self._forward, self._size, self._sampled = forward, size, sampled
        device = forward.model.device
        self._state = torch.zeros((5, size), dtype=torch.long, device=device)
        self._state[0] = forward.cache.spare_slot
        self._temperature = torch.ones((), device=device)
        self._number = torch.zeros(1, dtype=torch.long, device=device)
        self._offsets = compute_token_offsets(forward.model.vocabulary, device)
        self._tokens = torch.zeros((MAX_STEPS, size), dtype=torch.long, device=device)
        self._log_probs = torch.zeros((MAX_STEPS, size), device=device)
        self.graph = torch.cuda.CUDAGraph()
        self._run_step()  # initialization on first use must not be recorded
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self.graph.capture_begin(pool=pool)
            try:
                self._run_step()
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def _run_step(self) -> None:
        slots, tokens, lengths, keys, steps = self._state
        cache = self._forward.cache
        columns = lengths.clamp(max=cache.columns - 1)
        cache.start_pass(slots, columns)
        rows = _RecordedRows(slots, columns, cache)
        every = torch.arange(self._size, device=slots.device)
        logits = self._forward.call_network(tokens, lengths, rows, cache, every)
        temperature = self._temperature if self._sampled else None
        choice = self._forward.choose_tokens(logits, temperature, keys, steps, self._offsets)
        self._tokens.index_copy_(0, self._number, choice.tokens[None])
        self._log_probs.index_copy_(0, self._number, choice.log_probs[None])
        self._state[1].copy_(choice.tokens)
        self._state[2] += 1
        self._state[4] += 1
        self._number += 1

    def run(
        self, rows: Sequence[DecodeRow], temperature: float, steps: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        spare = self._size - len(rows)
        state = [
            [row.slot.index for row in rows] + [self._forward.cache.spare_slot] * spare,
            [row.token for row in rows] + [0] * spare,
            [len(row.slot.tokens) for row in rows] + [0] * spare,
            [row.key for row in rows] + [0] * spare,
            [row.step for row in rows] + [0] * spare,
        ]
        self._state.copy_(torch.tensor(state).pin_memory(), non_blocking=True)
        self._temperature.fill_(temperature)
        self._number.zero_()
        for _ in range(steps):
            self.graph.replay()
        tokens = self._tokens[:steps, : len(rows)].tolist()
        return tokens, self._log_probs[:steps, : len(rows)].tolist()


OUT_OF_MEMORY_MESSAGES = (
    "can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory",
)
"""Messages of torch with the system's allocator, with its own on ARM, and of CUDA itself."""


def is_out_of_memory(error: Exception) -> bool:
    """Check whether memory ran out, so that a smaller batch may work; on CPU only the message shows it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        message in str(error) for message in OUT_OF_MEMORY_MESSAGES
    )


def build_out_of_memory_error() -> GradingError:
    return GradingError("There is not enough memory for a single text.", "Grade with more memory.")
