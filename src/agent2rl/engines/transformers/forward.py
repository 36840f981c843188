"""One pass of the network over a batch: from the next tokens of each row to logits.

On CUDA a step of one token per row is recorded once as a graph and replayed: a model of half a billion
parameters otherwise spends most of a step starting some thousand small kernels. A recording belongs to one
batch at one capacity and is made anew when either changes.
"""

import gc

import torch
from torch import Tensor

from agent2rl.core.errors import GradingError
from agent2rl.engines.transformers.loading import Model
from agent2rl.engines.transformers.ragged import Ragged
from agent2rl.engines.transformers.rows import Rows

SAID = 200
"""Characters of the library's error that are passed on; it speaks of shapes, never of the text."""


class Forward:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.ragged = model.device.type == "cuda" and not model.windowed
        """Whether attention is told of rows by their bounds; by a mask as well, for models that want one."""
        self._graph: _Graph | None = None
        self._warm: set[int] = set()

    def __call__(self, rows: Rows, ids: Tensor, keep: int = 1) -> Tensor:
        """The logits after the last `keep` tokens: (rows, vocabulary), or (rows, keep, vocabulary)."""
        columns = ids.shape[1]
        rows.reserve(columns)
        mask = rows.present(columns) if self.model.windowed else rows.mask(columns)
        ragged = rows.ragged(columns) if self.ragged else None
        logits = self._network(rows, ids, mask, self.within(rows.positions(columns)), keep, ragged)
        rows.advance(columns)
        return logits[:, -1] if keep == 1 else logits

    def step(self, rows: Rows, ids: Tensor) -> Tensor:
        """The logits after one more token of each row."""
        if self.model.device.type != "cuda" or self.model.windowed:
            return self(rows, ids)
        if rows.reserve(1) or self._graph is None or self._graph.rows is not rows:
            self._graph = _Graph(self, rows, self._graph)
        return self._graph.replay(ids)

    def warmed(self, rows: int) -> bool:
        """Whether a step of so many rows was taken before; libraries set things up on first use."""
        was = rows in self._warm
        self._warm.add(rows)
        return was

    def within(self, positions: Tensor) -> Tensor:
        """Positions that the model knows: rows that have ended go on, and what they say does not count."""
        return positions.clamp(max=self.model.context - 1)

    def forget(self) -> None:
        """Give back what memory can be given back."""
        self._graph = None
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _network(
        self, rows: Rows, ids: Tensor, mask: Tensor, positions: Tensor, keep: int, ragged: Ragged | None
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
            if out_of_memory(error):
                raise
            said = " ".join(str(error).split())[:SAID]
            raise GradingError(
                f"The model fails on its input: {type(error).__name__}: {said}",
                "Check config.json against the base model's.",
            ) from error
        logits: Tensor = output.logits
        return logits


class _Graph:
    """A recorded step. Its tensors stay where they are; a replay fills in tokens and the column."""

    def __init__(self, forward: Forward, rows: Rows, last: "_Graph | None") -> None:
        """In the memory of the last recording, which is used no more."""
        self.rows = rows
        if last is not None:
            last.rows = rows  # what it held on to may go
        self.column = torch.tensor([rows.span.width], device=rows.starts.device)
        self.every = torch.arange(rows.span.capacity, device=rows.starts.device)
        self.ids = torch.zeros((len(rows.starts), 1), dtype=torch.long, device=rows.starts.device)
        self.graph = torch.cuda.CUDAGraph()
        rows.span.column = self.column
        try:
            if not forward.warmed(len(rows.starts)):
                self._pass(forward)  # what is set up on first use must not be recorded
            self._record(forward, last)
        finally:
            rows.span.column = None

    def _record(self, forward: Forward, last: "_Graph | None") -> None:
        """Unlike `torch.cuda.graph`, without giving free memory back first: to get it again takes long."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self.graph.capture_begin(pool=last.graph.pool() if last else None)
            try:
                self.logits = self._pass(forward)
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def _pass(self, forward: Forward) -> Tensor:
        now, starts = self.column, self.rows.starts[:, None]
        mask = (self.every >= starts) & (self.every <= now)
        positions = forward.within(now - starts)
        ragged = self.rows.ragged_at(now) if forward.ragged else None
        return forward._network(self.rows, self.ids, mask[:, None, None], positions, 1, ragged)[:, -1]

    def replay(self, ids: Tensor) -> Tensor:
        self.ids.copy_(ids)
        self.column.fill_(self.rows.span.width)
        self.graph.replay()
        self.rows.advance(1)
        return self.logits


FULL = ("can't allocate memory", "DefaultCPUAllocator: not enough memory")
"""What torch says with the system's allocator, and with its own on ARM."""


def out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may do; on CPU only the message tells."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(each in str(error) for each in FULL)


def no_memory() -> GradingError:
    return GradingError("There is not enough memory for a single text.", "Grade with more memory.")
