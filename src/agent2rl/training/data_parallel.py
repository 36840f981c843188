"""Train a small model on all cores: worker processes that share its weights, with one core each.

One operation of a model of a few million weights is too little work to divide among threads: on two cores two
threads were 1.2 times as fast as one, two processes nearly twice (docs/design/training.md). Workers are
forked, so they start at once and have all data of the caller. The weights are in shared memory; each worker
has its own gradients, which are added up. On a GPU, or with a larger model, the caller works alone.

    with DataParallelWorkers(model, {"loss": loss}) as workers:  # loss(job) returns a tensor
        [total] = workers.accumulate_gradients("loss", jobs)     # the sum of the losses; sets the gradients
"""

import logging
import math
import mmap
import multiprocessing
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from agent2rl.core.errors import MachineError

logger = logging.getLogger(__name__)

SMALL_MODEL_WEIGHTS = 30_000_000
"""A model with more weights keeps the threads of one process busy."""
MAX_WORKERS = 16

JobFunctions = Mapping[str, Callable[[Any], Any]]
"""Functions of workers by name. Jobs and results go through pipes; workers inherit the functions."""


@dataclass(frozen=True)
class _ForkedWorker:
    process: ForkProcess
    pipe: Connection
    gradients: Sequence[Tensor]


def is_small_model(model: PreTrainedModel) -> bool:
    """Return whether a pass of the model is too small for several threads."""
    return model.device.type == "cpu" and model.num_parameters() <= SMALL_MODEL_WEIGHTS


def count_workers(model: PreTrainedModel) -> int:
    """Return how many workers are worthwhile, including the caller."""
    return (
        1
        if not is_small_model(model)
        else max(1, min(MAX_WORKERS, len(os.sched_getaffinity(0)), _read_cpu_quota()))
    )


def _read_cpu_quota() -> int:
    """Return the CPU limit of the container, if it has one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return MAX_WORKERS if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return MAX_WORKERS


class DataParallelWorkers:
    """The caller is the first worker; the others live between `__enter__` and `__exit__`."""

    def __init__(self, model: PreTrainedModel, work: JobFunctions, size: int | None = None) -> None:
        self.size = size or count_workers(model)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._work = work
        self._workers: list[_ForkedWorker] = []
        self._threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        if self.size > 1:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
            torch.set_num_threads(1)
            for weight, place in zip(self._weights, _allocate_shared_tensors(self._weights), strict=True):
                weight.data = place.copy_(weight.data)
            try:
                for _ in range(self.size - 1):
                    self._workers.append(self._fork_worker())
            except BaseException as error:
                self.__exit__(None, None, None)
                if not isinstance(error, OSError):
                    raise
                raise MachineError(
                    f"Cannot start a training process: {error}.", "Allow more processes."
                ) from error
            logger.debug("Forked %d training processes", len(self._workers))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.kill()
            worker.process.join()
        self._workers = []
        torch.set_num_threads(self._threads)

    def map_jobs(self, name: str, jobs: Sequence[Any]) -> list[Any]:
        """Run each job on some worker and return the results in order."""
        shares = self._run_on_workers("ask", name, jobs)
        return [shares[place % self.size][place // self.size] for place in range(len(jobs))]

    def accumulate_gradients(self, name: str, jobs: Sequence[Any]) -> list[float]:
        """Add the gradients of these losses to the model's, and return the sum of the losses.

        A loss may be several numbers: the gradient is that of the first, and all are summed up.
        """
        parts = [part for part in self._run_on_workers("learn", name, jobs) if part]
        totals = [math.fsum(column) for column in zip(*parts, strict=True)] or [0.0]
        for worker in self._workers:
            for weight, gradient in zip(self._weights, worker.gradients, strict=True):
                weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
        return totals

    def _run_on_workers(self, verb: str, name: str, jobs: Sequence[Any]) -> list[Any]:
        """Run the jobs and return the result of each worker for its share."""
        try:
            for number, worker in enumerate(self._workers, start=1):
                worker.pipe.send((verb, name, jobs[number :: self.size]))
            own = self._run_jobs(verb, name, jobs[:: self.size])
            answers = [worker.pipe.recv() for worker in self._workers]
        except (EOFError, OSError) as error:
            raise MachineError(
                "A training process has died.", "Check whether there was enough memory."
            ) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [own, *answers]

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

    def _fork_worker(self) -> _ForkedWorker:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        gradients = _allocate_shared_tensors(self._weights)
        process = context.Process(target=self._serve_jobs, args=(here, there, gradients), daemon=True)
        process.start()
        there.close()
        return _ForkedWorker(process, here, gradients)

    def _serve_jobs(self, here: Connection, pipe: Connection, gradients: Sequence[Tensor]) -> None:
        """Serve jobs in a worker process until the caller closes its side of the pipe."""
        for closed in (here, *(worker.pipe for worker in self._workers)):
            closed.close()
        for weight, place in zip(self._weights, gradients, strict=True):
            weight.grad = place
        while True:
            try:
                verb, name, jobs = pipe.recv()
            except (EOFError, OSError, KeyboardInterrupt):
                os._exit(0)
            for gradient in gradients:
                gradient.zero_()
            try:
                answer = self._run_jobs(verb, name, jobs)
            except Exception as error:
                answer = error
            try:
                pipe.send(answer)
            except (TypeError, AttributeError, pickle.PicklingError):
                pipe.send(RuntimeError(repr(answer)))


def _allocate_shared_tensors(weights: Sequence[Parameter]) -> list[Tensor]:
    """Return zero tensors of the same shapes in memory that forks share."""
    sizes = [weight.numel() * weight.element_size() for weight in weights]
    memory = mmap.mmap(-1, sum(sizes))
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [
        torch.frombuffer(memory, dtype=weight.dtype, count=weight.numel(), offset=start).view(weight.shape)
        for weight, start in zip(weights, starts, strict=True)
    ]
