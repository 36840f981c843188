"""Use all cores for a small model: worker processes that are forked from the caller, with one core each.

One operation of a model of a few million weights is too little work to divide among threads: on two cores two
threads were 1.2 times as fast as one, two processes nearly twice (docs/design/training.md). Workers are
forked, so they start at once and have all data of the caller. They end with the caller, however it ends.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from transformers import PreTrainedModel

from agent2rl.core.errors import MachineError

logger = logging.getLogger(__name__)

T = TypeVar("T")

SMALL_MODEL_WEIGHTS = 30_000_000
"""A model with more weights keeps the threads of one process busy."""
MAX_WORKERS = 16
SECONDS_TO_END = 5.0
"""A worker that has not ended by then is killed."""

OpenWorker = Callable[[int], AbstractContextManager[Callable[[Any], Any]]]
"""Called in each worker with its number. Returns the function that answers the requests to this worker."""


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


def deal_shares(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Deal items out to `size` workers, interleaved, so that all get similar work."""
    return [items[number::size] for number in range(size)]


def join_shares(shares: Sequence[Sequence[T]]) -> list[T]:
    """Return dealt items in their original order."""
    size = len(shares)
    return [shares[place % size][place // size] for place in range(sum(map(len, shares)))]


class ForkedWorkers:
    """The caller is the first worker; the others live between `__enter__` and `__exit__`."""

    def __init__(self, size: int, open_worker: OpenWorker) -> None:
        self.size = size
        self._open_worker = open_worker
        self._own = ExitStack()
        self._processes: list[ForkProcess] = []
        self._pipes: list[Connection] = []
        self._threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        try:
            if self.size > 1:
                os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
                torch.set_num_threads(1)
                for number in range(1, self.size):
                    self._fork_worker(number)
                logger.debug("Forked %d worker processes", len(self._processes))
            self._answer_own = self._own.enter_context(self._open_worker(0))
        except BaseException as error:
            self.__exit__(None, None, None)
            if not isinstance(error, OSError):
                raise
            raise MachineError(f"Cannot start a worker process: {error}.", "Allow more processes.") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            pipe.close()
            process.terminate()
        for process in self._processes:
            process.join(SECONDS_TO_END)
            process.kill()
            process.join()
        self._processes, self._pipes = [], []
        self._own.close()
        torch.set_num_threads(self._threads)

    def run(self, requests: Sequence[Any]) -> list[Any]:
        """Send one request to each worker, the first to the caller itself, and return their answers.

        If a worker raises an exception, it is raised here once all have answered.
        """
        own, *others = requests
        try:
            for pipe, request in zip(self._pipes, others, strict=True):
                pipe.send(request)
            answers = [_answer_request(self._answer_own, own), *(pipe.recv() for pipe in self._pipes)]
        except BaseException as error:
            self.__exit__(None, None, None)  # the pipes may hold answers that nobody has read
            if not isinstance(error, EOFError | OSError):
                raise
            raise MachineError(
                "A worker process has died.", "Check whether there was enough memory."
            ) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _fork_worker(self, number: int) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=self._serve_requests, args=(number, here, there), daemon=True)
        process.start()
        there.close()
        self._processes.append(process)
        self._pipes.append(here)

    def _serve_requests(self, number: int, here: Connection, pipe: Connection) -> None:
        """Serve requests in a worker process until the caller closes its side of the pipe, or ends."""
        # Open copies of the others' pipes would hide the caller's end from them.
        for closed in (here, *self._pipes):
            closed.close()
        signal.signal(signal.SIGINT, lambda *_: None)  # the caller decides; not SIG_IGN, which is inherited
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        threading.Thread(target=_end_with_caller, daemon=True).start()
        with self._open_worker(number) as answer, suppress(EOFError, OSError):
            while True:
                _send_answer(pipe, _answer_request(answer, pipe.recv()))


def _end_with_caller() -> None:
    """End a worker whose caller was killed, even in the middle of a request."""
    caller = multiprocessing.parent_process()
    assert caller is not None
    caller.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _answer_request(answer: Callable[[Any], Any], request: Any) -> Any:
    """Return the answer, or the exception that the request ends with."""
    try:
        return answer(request)
    except Exception as error:
        return error


def _send_answer(pipe: Connection, answer: Any) -> None:
    try:
        if isinstance(answer, Exception):
            answer.add_note("In a worker process:\n" + "".join(traceback.format_exception(answer)))
            pickle.loads(pickle.dumps(answer))  # some exceptions fail only here
        pipe.send(answer)
    except (TypeError, AttributeError, pickle.PicklingError):
        pipe.send(RuntimeError(repr(answer)))
