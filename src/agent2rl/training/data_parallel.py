"""Train a small model on all cores: worker processes that share its weights, with one core each.

The weights are in shared memory; each worker has its own gradients, which are added up. On a GPU, or with a
larger model, the caller works alone.

    with DataParallelWorkers(model, {"loss": loss}) as workers:  # loss(job) returns a tensor
        [total] = workers.accumulate_gradients("loss", shares)   # the sum of the losses; sets the gradients
"""

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from agent2rl.engines.transformers.forked_workers import (
    ForkedWorkers,
    count_workers,
    deal_shares,
    join_shares,
)

__all__ = ["DataParallelWorkers", "count_workers"]

JobFunctions = Mapping[str, Callable[[Any], Any]]
"""Functions of workers by name. Jobs and results go through pipes; workers inherit the functions."""


class DataParallelWorkers:
    """The caller is the first worker; the others live between `__enter__` and `__exit__`."""

    def __init__(self, model: PreTrainedModel, work: JobFunctions, size: int | None = None) -> None:
        self.size = size or count_workers(model)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._gradients: list[Sequence[Tensor]] = []
        """Of the workers, without the caller's."""
        self._work = work
        self._workers = ForkedWorkers(self.size, self._open_worker)

    def __enter__(self) -> Self:
        if self.size > 1:
            for weight, place in zip(self._weights, _allocate_shared_tensors(self._weights), strict=True):
                weight.data = place.copy_(weight.data)
            self._gradients = [_allocate_shared_tensors(self._weights) for _ in range(self.size - 1)]
        self._workers.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.__exit__(kind, error, trace)
        self._gradients = []

    def map_jobs(self, name: str, jobs: Sequence[Any]) -> list[Any]:
        """Run each job on some worker and return the results in order."""
        return join_shares(self._run_on_workers("ask", name, deal_shares(jobs, self.size)))

    def accumulate_gradients(self, name: str, shares: Sequence[Sequence[Any]]) -> list[float]:
        """Add the gradients of these losses to the model's, and return the sum of the losses.

        There is a share of the jobs for each worker. A loss may be several numbers: the gradient is that of
        the first, and all are summed up.
        """
        parts = [part for part in self._run_on_workers("learn", name, shares) if part]
        totals = [math.fsum(column) for column in zip(*parts, strict=True)] or [0.0]
        for gradients in self._gradients:
            for weight, gradient in zip(self._weights, gradients, strict=True):
                # A copy, because the worker clears its own with the next job.
                weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
        return totals

    def _run_on_workers(self, verb: str, name: str, shares: Sequence[Sequence[Any]]) -> list[Any]:
        """Run the jobs and return the result of each worker for its share."""
        return self._workers.run([(verb, name, share) for share in shares])

    @contextmanager
    def _open_worker(self, number: int) -> Iterator[Callable[[Any], Any]]:
        gradients = self._gradients[number - 1] if number else []
        if number:
            for weight, place in zip(self._weights, gradients, strict=True):
                weight.grad = place

        def answer(request: tuple[str, str, Sequence[Any]]) -> Any:
            for gradient in gradients:
                gradient.zero_()
            return self._run_jobs(*request)

        yield answer

    def _run_jobs(self, verb: str, name: str, jobs: Sequence[Any]) -> Any:
        work = self._work[name]
        if verb == "ask":
            return [work(job) for job in jobs]
        totals: Tensor | None = None
        for job in jobs:
            losses: Tensor = torch.atleast_1d(work(job))  # type: ignore[no-untyped-call]
            losses[0].backward()  # type: ignore[no-untyped-call]
            losses = losses.detach().double()
            totals = losses if totals is None else totals + losses
        return [] if totals is None else totals.tolist()


def _allocate_shared_tensors(weights: Sequence[Parameter]) -> list[Tensor]:
    """Return zero tensors of the same shapes in memory that forks share."""
    sizes = [weight.numel() * weight.element_size() for weight in weights]
    # Unlike memory of torch, an anonymous mapping stays shared after a fork.
    memory = mmap.mmap(-1, sum(sizes))
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [
        torch.frombuffer(memory, dtype=weight.dtype, count=weight.numel(), offset=start).view(weight.shape)
        for weight, start in zip(weights, starts, strict=True)
    ]
