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

SMALL = 30_000_000
"""Weights; a larger model keeps the threads of one process busy."""
MOST = 16

Work = Mapping[str, Callable[[Any], Any]]
"""What members can do, by name. Jobs and results pass through pipes; the functions never do."""


@dataclass(frozen=True)
class _Member:
    process: ForkProcess
    pipe: Connection
    gradients: Sequence[Tensor]


def small(model: PreTrainedModel) -> bool:
    """Whether one core is enough for one pass of it."""
    return model.device.type == "cpu" and model.num_parameters() <= SMALL


def members(model: PreTrainedModel) -> int:
    """How many are worth having."""
    return 1 if not small(model) else max(1, min(MOST, len(os.sched_getaffinity(0)), _quota()))


def _quota() -> int:
    """The cores that a container may use, where it has such a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return MOST if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return MOST


class Crew:
    """The caller is the first member; the others live between `__enter__` and `__exit__`."""

    def __init__(self, model: PreTrainedModel, work: Work, size: int | None = None) -> None:
        self.size = size or members(model)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._work = work
        self._others: list[_Member] = []
        self._threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        if self.size > 1:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
            torch.set_num_threads(1)
            for weight, place in zip(self._weights, _shared(self._weights), strict=True):
                weight.data = place.copy_(weight.data)
            try:
                for _ in range(self.size - 1):
                    self._others.append(self._fork())
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

    def ask(self, name: str, jobs: Sequence[Any]) -> list[Any]:
        """The result of each job, in order."""
        shares = self._each("ask", name, jobs)
        return [shares[place % self.size][place // self.size] for place in range(len(jobs))]

    def learn(self, name: str, jobs: Sequence[Any]) -> float:
        """Add the gradients of these losses to the model's; their sum."""
        total = math.fsum(self._each("learn", name, jobs))
        for member in self._others:
            for weight, gradient in zip(self._weights, member.gradients, strict=True):
                weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
        return total

    def _each(self, verb: str, name: str, jobs: Sequence[Any]) -> list[Any]:
        """What each member makes of its share of the jobs."""
        try:
            for number, member in enumerate(self._others, start=1):
                member.pipe.send((verb, name, jobs[number :: self.size]))
            own = self._do(verb, name, jobs[:: self.size])
            answers = [member.pipe.recv() for member in self._others]
        except (EOFError, OSError) as error:
            raise MachineError(
                "A process of the training has died.", "See whether there was memory enough."
            ) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [own, *answers]

    def _do(self, verb: str, name: str, jobs: Sequence[Any]) -> Any:
        work = self._work[name]
        if verb == "ask":
            return [work(job) for job in jobs]
        total = 0.0
        for job in jobs:
            loss: Tensor = work(job)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _fork(self) -> _Member:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        gradients = _shared(self._weights)
        process = context.Process(target=self._serve, args=(here, there, gradients), daemon=True)
        process.start()
        there.close()
        return _Member(process, here, gradients)

    def _serve(self, here: Connection, pipe: Connection, gradients: Sequence[Tensor]) -> None:
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
                answer = self._do(verb, name, jobs)
            except Exception as error:
                answer = error
            try:
                pipe.send(answer)
            except (TypeError, AttributeError, pickle.PicklingError):
                pipe.send(RuntimeError(repr(answer)))


def _shared(weights: Sequence[Parameter]) -> list[Tensor]:
    """Tensors like these, full of zeros, in memory that forks share."""
    sizes = [weight.numel() * weight.element_size() for weight in weights]
    memory = mmap.mmap(-1, sum(sizes))
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [
        torch.frombuffer(memory, dtype=weight.dtype, count=weight.numel(), offset=start).view(weight.shape)
        for weight, start in zip(weights, starts, strict=True)
    ]
