"""Processes forked from the caller, which work for it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent2rl.core.errors import GradingError, MachineError
from agent2rl.engines.transformers.forked_workers import ForkedWorkers, deal_shares, join_shares

CALLER = os.getpid()


class TwoParts(Exception):
    """Cannot be read from a pipe."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def fail(error: Exception) -> None:
    raise error


def fail_with_two_parts() -> None:
    raise TwoParts("this", "that")


def kill_worker() -> None:
    if os.getpid() != CALLER:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def open_worker(_: int) -> Iterator[Callable[[Any], Any]]:
    yield lambda request: request[0](*request[1:])


def ask_pids(workers: ForkedWorkers) -> list[int]:
    return workers.run([(os.getpid,)] * workers.size)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_dealt_items_are_joined_in_their_order() -> None:
    shares = deal_shares(range(8), 3)
    assert [list(share) for share in shares] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert join_shares(shares) == list(range(8))


def test_each_worker_answers_its_own_request_and_the_caller_is_the_first() -> None:
    with ForkedWorkers(3, open_worker) as workers:
        pids = ask_pids(workers)
        assert pids[0] == os.getpid()
        assert len(set(pids)) == 3
        assert workers.run([(abs, -number) for number in range(3)]) == [0, 1, 2]
    assert not any(is_alive(pid) for pid in pids[1:])


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_is_raised_as_it_was_and_the_next_requests_get_their_own_answers(failing: int) -> None:
    requests: list[Any] = [(abs, -1)] * 3
    requests[failing] = (fail, GradingError("The model is broken.", "Train it again."))
    with ForkedWorkers(3, open_worker) as workers:
        with pytest.raises(GradingError) as caught:
            workers.run(requests)
        assert str(caught.value) == "The model is broken. Train it again."
        assert workers.run([(abs, -number) for number in range(3)]) == [0, 1, 2]


def test_an_error_shows_where_in_the_worker_it_was_raised() -> None:
    with ForkedWorkers(2, open_worker) as workers, pytest.raises(ValueError, match="odd") as caught:
        workers.run([(abs, 1), (fail, ValueError("odd"))])
    assert "raise error" in caught.value.__notes__[0]


def test_an_error_that_no_pipe_can_carry_keeps_its_text() -> None:
    with ForkedWorkers(2, open_worker) as workers, pytest.raises(RuntimeError, match="this and that"):
        workers.run([(abs, 1), (fail_with_two_parts,)])


def test_an_error_of_the_system_in_a_request_is_not_taken_for_a_death() -> None:
    with ForkedWorkers(2, open_worker) as workers, pytest.raises(FileNotFoundError):
        workers.run([(os.stat, "/nowhere"), (abs, 1)])


def test_a_worker_that_dies_is_an_error_and_all_others_end() -> None:
    with ForkedWorkers(3, open_worker) as workers:
        pids = ask_pids(workers)
        with pytest.raises(MachineError, match="A worker process has died"):
            workers.run([(abs, 1), (kill_worker,), (abs, 1)])
        assert not any(is_alive(pid) for pid in pids[1:])


def test_an_interrupt_is_the_callers_to_handle(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal. The caller ends the workers, busy ones too."""
    busy = tmp_path / "busy"
    os.mkfifo(busy)
    with ForkedWorkers(2, open_worker) as workers:
        (_, pid) = ask_pids(workers)
        os.kill(pid, signal.SIGINT)
        assert ask_pids(workers)[1] == pid
        with pytest.raises(KeyboardInterrupt):
            workers.run([(signal.raise_signal, signal.SIGINT), (busy.read_text,)])
        assert not is_alive(pid)


def test_a_busy_worker_ends_when_its_caller_is_killed(tmp_path: Path) -> None:
    read, write = os.pipe()
    busy = tmp_path / "busy"
    os.mkfifo(busy)
    caller = os.fork()
    if caller == 0:
        with ForkedWorkers(3, open_worker) as workers:
            os.write(write, " ".join(map(str, ask_pids(workers)[1:])).encode())
            workers.run([(threading.Event().wait,), (busy.read_text,), (busy.read_text,)])
        os._exit(0)
    pids = [int(pid) for pid in os.read(read, 100).split()]
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    late = time.monotonic() + 120
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < late
        time.sleep(0.05)


def test_one_worker_is_the_caller_alone() -> None:
    with ForkedWorkers(1, open_worker) as workers:
        assert ask_pids(workers) == [os.getpid()]
