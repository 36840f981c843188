"""Count what this process plays, and report it to the run's grading service.

A thread reports periodically (`POST /rollouts`) and once more when the process exits. Play never waits for
it, and reports are repeated later if the service is unreachable. The first reports are seconds apart, later
ones a thousandth of the elapsed time. Outside a run nothing is reported.

The counts are claims: a program can play without reporting, and this goes unnoticed. The budget of steps is
enforced all the same, by raising StepsUsedUp as soon as the service answers that no steps are left.

If the world is replayable, the actions of each episode are reported too (`POST /rollouts/episodes`), in
batches after the counts. The harness replays them. Traces that do not fit the buffer are dropped, and those
episodes stay claims.
"""

import atexit
import hashlib
import hmac
import http.client
import json
import logging
import multiprocessing.util
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent2rl.core.environment import World
from agent2rl.environments.adapters.client import ServedWorld
from agent2rl.environments.adapters.episodes import EpisodeSlot, EpisodeTrace, StepsUsedUp, open_world

FIRST_SECONDS, REPORT_SECONDS, ANSWER_SECONDS = 0.2, 2.0, 5.0
COUNT_NAMES = ("episodes", "steps", "successes")
BATCH_BYTES, BATCH_EPISODES = 48 << 10, 512
"""Limits of one report of episodes."""
BUFFER_BYTES = 8 << 20
"""Limit of the traces that wait to be reported."""
logger = logging.getLogger(__name__)


def sign_report(key: str, reporter: str, sequence: int, counts: Mapping[str, int]) -> str:
    """Sign a report for a run: HMAC-SHA256 of `reporter:sequence:episodes:steps:successes`, in hex."""
    text = ":".join([reporter, str(sequence), *(str(counts[name]) for name in COUNT_NAMES)])
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def count_traces(episodes: Iterable[EpisodeTrace]) -> dict[str, int]:
    """Count episodes, steps and successes."""
    kept = list(episodes)
    steps = sum(len(episode.actions) for episode in kept)
    return {"episodes": len(kept), "steps": steps, "successes": sum(episode.won for episode in kept)}


def sign_episodes(key: str, reporter: str, sequence: int, episodes: Iterable[EpisodeTrace]) -> str:
    """Sign a report of episodes, as `sign_report` with `/episodes` after the reporter and their counts."""
    return sign_report(key, f"{reporter}/episodes", sequence, count_traces(episodes))


class SlotCounter:
    """Counts of one slot. Only the slot writes them, so no lock is needed."""

    __slots__ = ("_reporter", "episodes", "steps", "successes")

    def __init__(self, reporter: "RolloutReporter") -> None:
        self._reporter = reporter
        self.episodes = self.steps = self.successes = 0

    def begin_episode(self) -> None:
        self._reporter.begin_episode()
        self.episodes += 1

    def require_budget(self) -> None:
        if self._reporter.spent:
            raise StepsUsedUp

    def count_step(self, won: bool) -> None:
        self.steps += 1
        if won:
            self.successes += 1


class UncountedSteps:
    """Counts nothing: the steps are the harness's own, or it counts them in the world that it serves."""

    def begin_episode(self) -> None:
        pass

    def require_budget(self) -> None:
        pass

    def count_step(self, won: bool) -> None:
        pass


class RolloutReporter:
    """Collect the counts of all slots of this process, and report them."""

    def __init__(self, url: str | None, key: str | None) -> None:
        self.spent = False
        self._url, self._key = url, key
        self._slots: list[tuple[weakref.ref[EpisodeSlot], SlotCounter]] = []
        self._reset_state()

    def _reset_state(self) -> None:
        self._id = secrets.token_hex(8)
        self._sequence = 0
        self._deleted = dict.fromkeys(COUNT_NAMES, 0)
        self._reported = dict.fromkeys(COUNT_NAMES, 0)
        self._unanswered: dict[str, int] | None = None
        self._left: int | None = None
        self._slowdown = 1.0
        self._warned = False
        self._thread: threading.Thread | None = None
        self._report_lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._traces: deque[tuple[int, EpisodeTrace]] = deque()
        """Traces that are not reported yet, each with its size in bytes."""
        self._trace_bytes = 0
        self._batch = 0

    def open_slot(self, world: World) -> EpisodeSlot:
        """Return a new slot whose episodes and steps are counted here, unless the harness counts them."""
        environment = world.environment()
        if isinstance(environment, ServedWorld):
            return EpisodeSlot(environment, UncountedSteps())
        counter = SlotCounter(self)
        reports = bool(self._url and self._key)
        slot = EpisodeSlot(environment, counter, self.keep_trace if reports and world.replayable else None)
        with self._count_lock:
            self._slots.append((weakref.ref(slot), counter))
        return slot

    def begin_episode(self) -> None:
        """Check the budget before an episode. Raises StepsUsedUp if no steps are left."""
        if self._thread is None and self._url and self._key:
            self._start_thread()
        # What is not reported yet may be all that was left: a report tells.
        if self._left is not None and not self.spent and self._count_unreported()["steps"] >= self._left:
            self.send_report()
        if self.spent:
            raise StepsUsedUp

    def keep_trace(self, trace: EpisodeTrace) -> None:
        """Keep the trace of a finished episode for the next report, if the buffer has room."""
        size = _estimate_bytes(trace)
        with self._count_lock:
            if size <= BATCH_BYTES and self._trace_bytes + size <= BUFFER_BYTES:
                self._traces.append((size, trace))
                self._trace_bytes += size

    def add_episodes(self, episodes: Sequence[EpisodeTrace]) -> None:
        """Count episodes that were played without a slot, and keep their traces."""
        self.begin_episode()
        with self._count_lock:
            for name, count in count_traces(episodes).items():
                self._deleted[name] += count
        for episode in episodes:
            self.keep_trace(episode)

    def send_report(self) -> None:
        """Report new counts, then the traces of episodes that these counts cover."""
        with self._report_lock:
            ready = len(self._traces)
            if self._send_counts():
                self._send_traces(ready)

    def send_last_report(self) -> None:
        """Report what is left when the process ends, with the episodes that are still open."""
        for slot, _ in self._slots:
            if played := slot():
                played.finish_trace()
        self.send_report()

    def _send_counts(self) -> bool:
        """Report new counts. An unanswered report is repeated unchanged before a new one is sent.

        Returns whether all counts are settled.
        """
        for _ in range(2):
            # Counted as reported before there is an answer: the same report is then repeated, with
            # the same number, and the harness can tell that it has it already.
            if self._unanswered is None:
                new = self._count_unreported()
                if not any(new.values()):
                    return True
                self._unanswered = new
                self._reported = {name: self._reported[name] + new[name] for name in COUNT_NAMES}
                self._sequence += 1
            if not self._post_counts(self._unanswered):
                return False
            self._unanswered = None
        return True

    def _send_traces(self, count: int) -> None:
        """Report the first `count` traces. A batch without an answer is sent again with the next report."""
        while count > 0:
            batch = self._take_batch(count)
            if not self._post_traces(batch):
                return
            count -= len(batch)
            with self._count_lock:
                self._trace_bytes -= sum(self._traces.popleft()[0] for _ in batch)

    def _take_batch(self, count: int) -> list[EpisodeTrace]:
        batch: list[EpisodeTrace] = []
        room = BATCH_BYTES
        for size, trace in islice(self._traces, min(count, BATCH_EPISODES)):
            room -= size
            if room < 0:
                break
            batch.append(trace)
        return batch

    def reset_after_fork(self) -> None:
        """Start from zero in a forked child: earlier counts and the thread belong to the parent."""
        for slot, counter in self._slots:
            counter.episodes = counter.steps = counter.successes = 0
            if played := slot():
                played.drop_trace()
        self._reset_state()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._report_periodically, name="rollout-claims", daemon=True)
        self._thread.start()
        atexit.register(self.send_last_report)
        # Children of multiprocessing do not run atexit handlers.
        multiprocessing.util.Finalize(None, self.send_last_report, exitpriority=0)

    def _report_periodically(self) -> None:
        began, pause = time.monotonic(), FIRST_SECONDS
        while True:
            time.sleep(pause)
            self.send_report()
            pause = max(REPORT_SECONDS * self._slowdown, (time.monotonic() - began) / 1000)

    def _count_unreported(self) -> dict[str, int]:
        """Return the counts since the last report. Of deleted slots only the sum is kept."""
        with self._count_lock:
            alive = []
            total = dict(self._deleted)
            for slot, counter in self._slots:
                deleted = slot() is None
                for name in COUNT_NAMES:
                    count = getattr(counter, name)
                    total[name] += count
                    self._deleted[name] += count if deleted else 0
                if not deleted:
                    alive.append((slot, counter))
            self._slots[:] = alive
            return {name: total[name] - self._reported[name] for name in COUNT_NAMES}

    def _post_counts(self, counts: dict[str, int]) -> bool:
        """Post counts. Returns whether they are settled, accepted or refused; else they are sent again."""
        signature = sign_report(str(self._key), self._id, self._sequence, counts)
        body = {"reporter": self._id, "sequence": self._sequence, **counts, "signature": signature}
        try:
            status, answer = _post_report(str(self._url), body)
            if status == 200:
                self._left = answer["environment_steps_left"]
                self.spent = self._left is not None and self._left <= 0
                return True
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            logger.debug("Rollout report %d got no valid answer: %r", self._sequence, error)
            return False
        if self._must_retry(status):
            return False
        if status != 409:  # 409: the answer to an earlier try was lost, and these are counted already
            # A report that was refused has not used up its number; the next one must have it.
            self._sequence -= 1
            self._warn_refused(answer)
        return True

    def _post_traces(self, batch: Sequence[EpisodeTrace]) -> bool:
        """Post a batch of episodes. Returns whether it is settled."""
        number = self._batch + 1
        signature = sign_episodes(str(self._key), self._id, number, batch)
        episodes = [asdict(trace) for trace in batch]
        body = {"reporter": self._id, "sequence": number, "episodes": episodes, "signature": signature}
        try:
            status, answer = _post_report(str(self._url), body, "/rollouts/episodes")
        except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
            logger.debug("Episode report %d got no valid answer: %r", number, error)
            return False
        if self._must_retry(status):
            return False
        if status in (200, 409):
            self._batch = number
        else:
            self._warn_refused(answer)
        return True

    def _must_retry(self, status: int) -> bool:
        if status not in (429, 500, 502, 503):
            return False
        self._slowdown = min(self._slowdown * 2, 64.0)
        logger.debug("A rollout report got status %d, will retry", status)
        return True

    def _warn_refused(self, answer: Mapping[str, Any]) -> None:
        if not self._warned:
            logger.warning("The grading service refuses rollout reports: %s", answer.get("detail"))
        self._warned = True


def _estimate_bytes(trace: EpisodeTrace) -> int:
    """Return at least the size of a trace in a report: JSON escapes may take six bytes a character."""
    texts = [trace.game, *trace.actions]
    escaped = sum(len(text) if text.isascii() and text.isprintable() else 6 * len(text) for text in texts)
    return escaped + sum(text.count('"') + text.count("\\") for text in texts) + 4 * len(texts) + 100


def _post_report(
    url: str, body: Mapping[str, object], route: str = "/rollouts"
) -> tuple[int, dict[str, Any]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
    try:
        path = parts.path.rstrip("/") + route
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, dict(json.loads(response.read(1 << 16)))
    finally:
        connection.close()


ROLLOUT_REPORTER = RolloutReporter(os.environ.get("GRADING_SERVER_URL"), os.environ.get("ROLLOUT_KEY"))
"""The reporter of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ROLLOUT_REPORTER.reset_after_fork)


def count_steps(world: World) -> World:
    """Return the same world with every step counted, for programs with their own game loop."""
    return replace(world, environment=lambda: ROLLOUT_REPORTER.open_slot(world))


def report_episodes(episodes: Sequence[EpisodeTrace]) -> None:
    """Report episodes that were played in other ways than through an adapter or `count_steps`.

    Raises StepsUsedUp if the budget of steps is used up.
    """
    ROLLOUT_REPORTER.add_episodes(episodes)


def open_training_environment() -> EpisodeSlot:
    """Return a new environment that plays the run's training games, with every step counted."""
    return ROLLOUT_REPORTER.open_slot(_open_world_once(os.environ.get("DATA_PATH")))


@lru_cache(maxsize=1)
def _open_world_once(data: str | None) -> World:
    return open_world(Path(data) if data else None)
