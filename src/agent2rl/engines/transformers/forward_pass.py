"""One pass of the network over packed rows: from the new tokens of each row to the logits of the next.

On CUDA a decode step, from the last token of each row to the choice of the next, is recorded once for each
batch size as a graph and replayed for the life of the cache: a model of half a billion parameters otherwise
spends most of a step launching some thousand small kernels. The graph keeps tokens, lengths and choices on
the device, so that several steps run without the host. Small prefills are recorded, too.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from agent2rl.core.errors import GradingError
from agent2rl.engines.transformers.attention import (
    FlashBounds,
    LayerAttention,
    PackedRows,
    PackedSequences,
    attend_by_flash_kernel,
)
from agent2rl.engines.transformers.cached_rows import CachedRows
from agent2rl.engines.transformers.decode_kernel import attend_with_split_keys, can_split_keys
from agent2rl.engines.transformers.kv_cache import CacheSlot, SlotKVCache
from agent2rl.engines.transformers.llama_pass import read_llama_layers, run_llama
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
        self.graphs = RecordedGraphs(self) if can_record_graphs(model) else None
        self.choose_tokens = choose_tokens
        """Chooses the tokens of a recorded step; training puts a compiled one in its place."""

    def feed_slots(self, slots: Sequence[CacheSlot], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Append these tokens to the slots; return the logits after the last of each, (slots, vocabulary).
        On a GPU they hold until the next call."""
        if self.graphs and (logits := self.graphs.prefill(slots, tokens)) is not None:
            for slot, fed in zip(slots, tokens, strict=True):
                slot.tokens.extend(fed)
            return logits
        rows = CachedRows(
            [slot.index for slot in slots],
            [len(slot.tokens) for slot in slots],
            [len(fed) for fed in tokens],
            self.model.device,
        )
        ids = torch.tensor([token for row in rows.order for token in tokens[row]], device=self.model.device)
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
    # A network's first pass goes through the library, to see that every layer attends by rows.
    first = network not in _checked_networks
    if not first and (layers := read_llama_layers(network)) is not None:
        llama = cast(LlamaForCausalLM, network)
        return run_llama(llama, layers, ids, positions, rows, cache, keep)
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


class RecordedGraphs:
    """Recorded decode steps and prefills of all sizes that were needed so far."""

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward
        self._graphs: dict[tuple[int, bool], _DecodeGraph] = {}
        self._prefill_graphs: dict[PrefillSize, _PrefillGraph] = {}
        self._version = -1
        self._pool: Any = None
        self._weights = sum(weight.numel() for weight in forward.model.network.parameters())

    def prefill(self, slots: Sequence[CacheSlot], tokens: Sequence[Sequence[int]]) -> Tensor | None:
        """Feed tokens to slots and return the logits after the last of each; None where that is not worth a
        graph: a large pass keeps the device busy for longer than it takes to launch its kernels."""
        size = PrefillSize.choose(tokens)
        if (
            size is None
            or size.tokens * self._weights > MAX_RECORDED_WORK
            # The first pass allocates the cache, which must not happen within a recording.
            or not self._forward.cache.is_filled
        ):
            return None
        self._drop_stale_graphs()
        graph = self._prefill_graphs.get(size)
        if graph is None:
            graph = _PrefillGraph(self._forward, size, self._pool)
            # Graphs can share their memory, because no two of them run at the same time.
            self._pool = self._pool or graph.graph.pool()
            self._prefill_graphs[size] = graph
        return graph.run(slots, tokens)

    def decode_steps(
        self, rows: Sequence[DecodeRow], temperature: float, steps: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return the next tokens of each row and their log-probabilities, (steps, rows)."""
        self._drop_stale_graphs()
        size = next((size for size in BATCH_SIZES if size >= len(rows)), len(rows))
        graph = self._graphs.get((size, temperature > 0))
        if graph is None:
            graph = _DecodeGraph(self._forward, size, temperature > 0, self._pool)
            self._pool = self._pool or graph.graph.pool()
            self._graphs[size, temperature > 0] = graph
        return graph.run(rows, temperature, steps)

    def clear(self) -> None:
        self._graphs, self._prefill_graphs, self._pool = {}, {}, None

    def _drop_stale_graphs(self) -> None:
        """Drop all graphs if the cache's memory has moved."""
        if self._version != self._forward.cache.version:
            self.clear()
            self._version = self._forward.cache.version


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
        self.graph = record_graph(self._run_step, pool)

    def _run_step(self) -> None:
        slots, tokens, lengths, keys, steps = self._state
        cache = self._forward.cache
        # Rows that have ended go on within a recorded batch, also beyond the end of their slot.
        columns = lengths.clamp(max=cache.columns - 1)
        cache.start_pass(slots, columns)
        rows = _RecordedRows(slots, columns, cache)
        every = torch.arange(self._size, device=slots.device)
        logits = self._forward.call_network(tokens, lengths, rows, cache, every)
        temperature = self._temperature if self._sampled else None
        choice = self._forward.choose_tokens(logits, temperature, keys, steps, self._offsets)
        self._tokens.index_copy_(0, self._number, choice.tokens[None])
        self._log_probs.index_copy_(0, self._number, choice.log_probs[None])
        # In place: the next replay of the graph reads what this one left.
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
        # From pinned memory, so that the host need not wait for the steps before.
        self._state.copy_(torch.tensor(state).pin_memory(), non_blocking=True)
        self._temperature.fill_(temperature)
        self._number.zero_()
        for _ in range(steps):
            self.graph.replay()
        tokens = self._tokens[:steps, : len(rows)].tolist()
        return tokens, self._log_probs[:steps, : len(rows)].tolist()


def record_graph(run: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Record what a function does on the device."""
    graph = torch.cuda.CUDAGraph()
    run()  # initialization on first use must not be recorded
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        try:
            run()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


# Recorded prefills

PREFILL_TOKENS = tuple(size for power in range(7, 13) for size in (2**power, 3 * 2 ** (power - 1)))
PREFILL_ROWS = (16, 64, 160, 320, 640)
LONGEST_PREFILLS = (64, 256, 1024)
MAX_RECORDED_WORK = 1 << 40
"""Tokens times weights of the largest recorded prefill: a few milliseconds of a large GPU."""


@dataclass(frozen=True)
class PrefillSize:
    """The size of a recorded prefill; a smaller one is filled up."""

    tokens: int
    rows: int
    longest: int

    @classmethod
    def choose(cls, tokens: Sequence[Sequence[int]]) -> "PrefillSize | None":
        """Return the smallest size that fits; None if none does."""
        counts = [len(fed) for fed in tokens]
        needed = (
            (PREFILL_TOKENS, sum(counts)),
            # One row more takes the tokens that fill up the rest.
            (PREFILL_ROWS, len(counts) + 1),
            (LONGEST_PREFILLS, max(counts)),
        )
        sizes = [next((size for size in sizes if size >= least), None) for sizes, least in needed]
        return None if None in sizes else cls(*(size for size in sizes if size is not None))


class _RecordedPrefillRows:
    """Rows of a recorded prefill, with bounds as tensors."""

    def __init__(self, queries: Tensor, slots: Tensor, used: Tensor, longest: int, columns: int) -> None:
        self._queries, self._slots, self._used = queries, slots, used
        self._longest, self._columns = longest, columns
        self._bounds: FlashBounds | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        if self._bounds is None:
            offsets = self._slots * (key.stride(0) // key.shape[3])
            self._bounds = FlashBounds(
                self._queries.int(),
                torch.cat([offsets, offsets.new_zeros(1)]).int(),
                self._used.int(),
                self._longest,
                self._columns,
            )
        return attend_by_flash_kernel(query, key, value, self._bounds, layer)


class _PrefillGraph:
    def __init__(self, forward: ForwardPass, size: PrefillSize, pool: Any) -> None:
        self._forward, self._size = forward, size
        parts = [size.tokens] * 3 + [size.rows + 1] + [size.rows] * 3
        self._state = torch.zeros(sum(parts), dtype=torch.long, device=forward.model.device)
        self._parts = torch.split(self._state, parts)
        self._state.copy_(self._describe_rows([], []))
        self._logits: Tensor | None = None
        self.graph = record_graph(self._run_pass, pool)

    def _run_pass(self) -> None:
        ids, positions, token_slots, queries, slots, used, last = self._parts
        cache = self._forward.cache
        cache.start_pass(token_slots, positions)
        rows = _RecordedPrefillRows(queries, slots, used, self._size.longest, cache.columns)
        self._logits = self._forward.call_network(ids, positions, rows, cache, last)

    def run(self, slots: Sequence[CacheSlot], tokens: Sequence[Sequence[int]]) -> Tensor:
        self._state.copy_(self._describe_rows(slots, tokens).pin_memory(), non_blocking=True)
        self.graph.replay()
        assert self._logits is not None
        return self._logits[: len(slots)]

    def _describe_rows(self, slots: Sequence[CacheSlot], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Return the graph's input. The spare slot takes the tokens that fill it up, one over the other."""
        size, spare = self._size, self._forward.cache.spare_slot
        counts = [len(fed) for fed in tokens]
        ends = list(accumulate(counts, initial=0))
        filling, empty = size.tokens - ends[-1], size.rows - len(slots) - 1
        lengths = [len(slot.tokens) for slot in slots]
        ids = [token for fed in tokens for token in fed]
        places = [
            place
            for length, count in zip(lengths, counts, strict=True)
            for place in range(length, length + count)
        ]
        token_slots = [slot.index for slot, count in zip(slots, counts, strict=True) for _ in range(count)]
        used = [length + count for length, count in zip(lengths, counts, strict=True)]
        return torch.tensor(
            [
                *(*ids, *[0] * filling),
                *(*places, *[0] * filling),
                *(*token_slots, *[spare] * filling),
                *(*ends, *[size.tokens] * (empty + 1)),
                *(*(slot.index for slot in slots), *[spare] * (empty + 1)),
                *(*used, 1, *[0] * empty),
                *(*(end - 1 for end in ends[1:]), *[0] * (empty + 1)),
            ]
        )


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
