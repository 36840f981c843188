"""Trains a small model on all cores: processes that share its weights, one core each.

One operation of a model of a few million weights is too little work to divide among threads: on two cores two
threads were 1.2 times as fast as one, two processes nearly twice (docs/design/training.md). Members are
forked, so they start at once and know all that the caller knows. The weights lie in memory that all of them
see; each has gradients of its own, which are added up. On a GPU, or with a larger model, the caller is alone.

    with Crew(model, {"loss": loss}) as crew:      # loss(job) is a tensor
        total = crew.learn("loss", jobs)           # the sum of the losses; model.parameters() have gradients
"""

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

SMALL_MODEL_WEIGHTS = 30_000_000
"""Weights; a larger model keeps the threads of one process busy."""
MAX_WORKERS = 16

JobFunctions = Mapping[str, Callable[[Any], Any]]
"""What members can do, by name. Jobs and results pass through pipes; the functions never do."""


@dataclass(frozen=True)
class _ForkedWorker:
    process: ForkProcess
    pipe: Connection
    gradients: Sequence[Tensor]


def is_small_model(model: PreTrainedModel) -> bool:
    """Whether one core is enough for one pass of it."""
    return model.device.type == "cpu" and model.num_parameters() <= SMALL_MODEL_WEIGHTS


def count_workers(model: PreTrainedModel) -> int:
    """How many are worth having."""
    return (
        1
        if not is_small_model(model)
        else max(1, min(MAX_WORKERS, len(os.sched_getaffinity(0)), _read_cpu_quota()))
    )


def _read_cpu_quota() -> int:
    """The cores that a container may use, where it has such a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return MAX_WORKERS if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return MAX_WORKERS


class DataParallelWorkers:
    """The caller is the first member; the others live between `__enter__` and `__exit__`."""

    def __init__(self, model: PreTrainedModel, work: JobFunctions, size: int | None = None) -> None:
        self.size = size or count_workers(model)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._work = work
        self._others: list[_ForkedWorker] = []
        self._threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        if self.size > 1:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
            torch.set_num_threads(1)
            for weight, place in zip(self._weights, _allocate_shared_tensors(self._weights), strict=True):
                weight.data = place.copy_(weight.data)
            try:
                for _ in range(self.size - 1):
                    self._others.append(self._fork_worker())
            except BaseException as error:
                self.__exit__(None, None, None)
                if not isinstance(error, OSError):
                    raise
                raise MachineError(
                    f"A process of the training cannot be started: {error}.", "Allow more processes."
                ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._others:
            member.pipe.close()
            member.process.kill()
            member.process.join()
        self._others = []
        torch.set_num_threads(self._threads)

    def map_jobs(self, name: str, jobs: Sequence[Any]) -> list[Any]:
        """The result of each job, in order."""
        shares = self._run_on_workers("ask", name, jobs)
        return [shares[place % self.size][place // self.size] for place in range(len(jobs))]

    def accumulate_gradients(self, name: str, jobs: Sequence[Any]) -> float:
        """Add the gradients of these losses to the model's; their sum."""
        total = math.fsum(self._run_on_workers("learn", name, jobs))
        for member in self._others:
            for weight, gradient in zip(self._weights, member.gradients, strict=True):
                weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
        return total

    def _run_on_workers(self, verb: str, name: str, jobs: Sequence[Any]) -> list[Any]:
        """What each member makes of its share of the jobs."""
        try:
            for number, member in enumerate(self._others, start=1):
                member.pipe.send((verb, name, jobs[number :: self.size]))
            own = self._run_jobs(verb, name, jobs[:: self.size])
            answers = [member.pipe.recv() for member in self._others]
        except (EOFError, OSError) as error:
            raise MachineError(
                "A process of the training has died.", "See whether there was memory enough."
            ) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [own, *answers]

    def _run_jobs(self, verb: str, name: str, jobs: Sequence[Any]) -> Any:
        work = self._work[name]
        if verb == "ask":
            return [work(job) for job in jobs]
        total = 0.0
        for job in jobs:
            loss: Tensor = work(job)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _fork_worker(self) -> _ForkedWorker:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        gradients = _allocate_shared_tensors(self._weights)
        process = context.Process(target=self._serve_jobs, args=(here, there, gradients), daemon=True)
        process.start()
        there.close()
        return _ForkedWorker(process, here, gradients)

    def _serve_jobs(self, here: Connection, pipe: Connection, gradients: Sequence[Tensor]) -> None:
        """The life of another member, which ends with the caller's side of its pipe."""
        for closed in (here, *(member.pipe for member in self._others)):
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
    """Tensors like these, full of zeros, in memory that forks share."""
    sizes = [weight.numel() * weight.element_size() for weight in weights]
    memory = mmap.mmap(-1, sum(sizes))
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [
        torch.frombuffer(memory, dtype=weight.dtype, count=weight.numel(), offset=start).view(weight.shape)
        for weight, start in zip(weights, starts, strict=True)
    ]
