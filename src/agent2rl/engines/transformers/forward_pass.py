"""One pass of the network over a batch: from the next tokens of each row to logits.

On CUDA a step of one token per row is recorded once as a graph and replayed: a model of half a billion
parameters otherwise spends most of a step launching some thousand small kernels. A recording belongs to one
batch at one capacity and is recorded again when either changes.
"""

import gc

import torch
from torch import Tensor

from agent2rl.core.errors import GradingError
from agent2rl.engines.transformers.attention import RaggedBounds
from agent2rl.engines.transformers.kv_cache import BatchKVCache
from agent2rl.engines.transformers.loading import LoadedModel

MAX_ERROR_CHARACTERS = 200
"""Maximum characters of the library's error that are shown; it is about shapes, never about the text."""


class ForwardPass:
    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.ragged = model.device.type == "cuda" and not model.windowed
        """Whether attention gets the bounds of rows; it gets a mask too, for models that need one."""
        self._graph: _DecodeGraph | None = None
        self._warm: set[int] = set()

    def __call__(self, rows: BatchKVCache, ids: Tensor, keep: int = 1) -> Tensor:
        """Return the logits after the last `keep` tokens: (rows, vocabulary) or (rows, keep, vocabulary)."""
        columns = ids.shape[1]
        rows.reserve_columns(columns)
        mask = (
            rows.mark_present_columns(columns) if self.model.windowed else rows.build_attention_mask(columns)
        )
        ragged = rows.ragged_bounds(columns) if self.ragged else None
        logits = self._call_network(
            rows, ids, mask, self.clamp_positions(rows.compute_positions(columns)), keep, ragged
        )
        rows.advance_width(columns)
        return logits[:, -1] if keep == 1 else logits

    def decode_step(self, rows: BatchKVCache, ids: Tensor) -> Tensor:
        """Return the logits after one more token of each row."""
        if self.model.device.type != "cuda" or self.model.windowed:
            return self(rows, ids)
        if rows.reserve_columns(1) or self._graph is None or self._graph.rows is not rows:
            self._graph = _DecodeGraph(self, rows, self._graph)
        return self._graph.replay_step(ids)

    def mark_warmed_up(self, rows: int) -> bool:
        """Return whether a step of so many rows ran before; libraries initialize themselves on first use."""
        was_warm = rows in self._warm
        self._warm.add(rows)
        return was_warm

    def clamp_positions(self, positions: Tensor) -> Tensor:
        """Clamp positions to the context: ended rows continue, but their output is ignored."""
        return positions.clamp(max=self.model.context - 1)

    def release_memory(self) -> None:
        """Release cached memory."""
        self._graph = None
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _call_network(
        self,
        rows: BatchKVCache,
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        keep: int,
        ragged: RaggedBounds | None,
    ) -> Tensor:
        more = {} if ragged is None else {"ragged": ragged}
        try:
            output = self.model.network(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=rows,
                use_cache=True,
                logits_to_keep=keep,
                **more,
            )
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            message = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
            raise GradingError(
                f"The model fails on its input: {type(error).__name__}: {message}",
                "Compare config.json with the base model's.",
            ) from error
        logits: Tensor = output.logits
        return logits


class _DecodeGraph:
    """A recorded step. Its tensors keep their addresses; a replay fills in tokens and the column."""

    def __init__(self, forward: ForwardPass, rows: BatchKVCache, last: "_DecodeGraph | None") -> None:
        """Record a step; it reuses the memory of the last recording, which must not be used any more."""
        self.rows = rows
        if last is not None:
            last.rows = rows  # release the cache that it refers to
        self.column = torch.tensor([rows.span.width], device=rows.starts.device)
        self.every = torch.arange(rows.span.capacity, device=rows.starts.device)
        self.ids = torch.zeros((len(rows.starts), 1), dtype=torch.long, device=rows.starts.device)
        self.graph = torch.cuda.CUDAGraph()
        rows.span.column = self.column
        try:
            if not forward.mark_warmed_up(len(rows.starts)):
                self._run_step(forward)  # initialization on first use must not be recorded
            self._record_graph(forward, last)
        finally:
            rows.span.column = None

    def _record_graph(self, forward: ForwardPass, last: "_DecodeGraph | None") -> None:
        """Record without releasing free memory first, unlike `torch.cuda.graph`: reallocation is slow."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self.graph.capture_begin(pool=last.graph.pool() if last else None)
            try:
                self.logits = self._run_step(forward)
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def _run_step(self, forward: ForwardPass) -> Tensor:
        now, starts = self.column, self.rows.starts[:, None]
        mask = (self.every >= starts) & (self.every <= now)
        positions = forward.clamp_positions(now - starts)
        ragged = self.rows.ragged_bounds_at(now) if forward.ragged else None
        return forward._call_network(self.rows, self.ids, mask[:, None, None], positions, 1, ragged)[:, -1]

    def replay_step(self, ids: Tensor) -> Tensor:
        self.ids.copy_(ids)
        self.column.fill_(self.rows.span.width)
        self.graph.replay()
        self.rows.advance_width(1)
        return self.logits


OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "DefaultCPUAllocator: not enough memory")
"""Messages of torch with the system's allocator, and with its own on ARM."""


def is_out_of_memory(error: Exception) -> bool:
    """Check whether memory ran out, so that a smaller batch may work; on CPU only the message shows it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        message in str(error) for message in OUT_OF_MEMORY_MESSAGES
    )


def build_out_of_memory_error() -> GradingError:
    return GradingError("There is not enough memory for a single text.", "Grade with more memory.")
