"""What this process plays by itself, counted here and claimed to the run's grading service.

A thread reports now and then (`POST /rollouts`), and once more at the end of the process: play never waits
for it, and a service that is away is told later. The first reports are seconds apart, later ones further: a
thousandth of the time that went by. Outside of a run nothing is reported.

These are claims: a program can play without reporting, and nobody would know. A run's budget of steps is
kept all the same, by raising StepsUsedUp as soon as the service says that nothing is left.
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
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from agent2rl.core.environment import World
from agent2rl.environments.adapters.episodes import EpisodeSlot, StepsUsedUp

FIRST_SECONDS, REPORT_SECONDS, ANSWER_SECONDS = 0.2, 2.0, 5.0
COUNT_NAMES = ("episodes", "steps", "successes")
_log = logging.getLogger("agent2rl")


def sign_report(key: str, reporter: str, sequence: int, counts: Mapping[str, int]) -> str:
    """Binds a report to a run: HMAC-SHA256 of `reporter:sequence:episodes:steps:successes`, in hex."""
    text = ":".join([reporter, str(sequence), *(str(counts[name]) for name in COUNT_NAMES)])
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


class SlotCounter:
    """What was played on one seat. Only the seat writes it, so it needs no lock."""

    __slots__ = ("_claims", "episodes", "steps", "successes")

    def __init__(self, claims: "RolloutReporter") -> None:
        self._claims = claims
        self.episodes = self.steps = self.successes = 0

    def begin(self) -> None:
        self._claims.begin_episode()
        self.episodes += 1

    def allow(self) -> None:
        if self._claims.spent:
            raise StepsUsedUp

    def stepped(self, won: bool) -> None:
        self.steps += 1
        if won:
            self.successes += 1


class RolloutReporter:
    """All seats of a process, and whom to tell of them."""

    def __init__(self, url: str | None, key: str | None) -> None:
        self.spent = False
        self._url, self._key = url, key
        self._seats: list[tuple[weakref.ref[EpisodeSlot], SlotCounter]] = []
        self._reset_state()

    def _reset_state(self) -> None:
        self._reporter = secrets.token_hex(8)
        self._sequence = 0
        self._past = dict.fromkeys(COUNT_NAMES, 0)
        self._told = dict.fromkeys(COUNT_NAMES, 0)
        self._unanswered: dict[str, int] | None = None
        self._left: int | None = None
        self._slowly = 1.0
        self._warned = False
        self._thread: threading.Thread | None = None
        self._telling = threading.Lock()
        self._counting = threading.Lock()

    def open_slot(self, world: World) -> EpisodeSlot:
        """A seat whose play is counted here."""
        tally = SlotCounter(self)
        seat = EpisodeSlot(world, tally)
        with self._counting:
            self._seats.append((weakref.ref(seat), tally))
        return seat

    def begin_episode(self) -> None:
        """Before each episode: raises StepsUsedUp where what was played uses up what the service left."""
        if self._thread is None and self._url and self._key:
            self._start_thread()
        if self._left is not None and not self.spent and self._count_unreported()["steps"] >= self._left:
            self.send_report()
        if self.spent:
            raise StepsUsedUp

    def send_report(self) -> None:
        """Tell what is new. What gets no answer is told again, word for word, before anything else."""
        with self._telling:
            for _ in range(2):
                if self._unanswered is None:
                    new = self._count_unreported()
                    if not any(new.values()):
                        return
                    self._unanswered = new
                    self._told = {name: self._told[name] + new[name] for name in COUNT_NAMES}
                    self._sequence += 1
                if not self._post_counts(self._unanswered):
                    return
                self._unanswered = None

    def reset_after_fork(self) -> None:
        """After a fork: what was played before is the parent's, and so is the thread."""
        for _, tally in self._seats:
            tally.episodes = tally.steps = tally.successes = 0
        self._reset_state()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._report_periodically, name="rollout-claims", daemon=True)
        self._thread.start()
        atexit.register(self.send_report)
        multiprocessing.util.Finalize(
            None, self.send_report, exitpriority=0
        )  # atexit is not for its children

    def _report_periodically(self) -> None:
        began, pause = time.monotonic(), FIRST_SECONDS
        while True:
            time.sleep(pause)
            self.send_report()
            pause = max(REPORT_SECONDS * self._slowly, (time.monotonic() - began) / 1000)

    def _count_unreported(self) -> dict[str, int]:
        """What was counted since the last report. Of seats that are gone only the sum is kept."""
        with self._counting:
            alive = []
            total = dict(self._past)
            for seat, tally in self._seats:
                gone = seat() is None
                for name in COUNT_NAMES:
                    count = getattr(tally, name)
                    total[name] += count
                    self._past[name] += count if gone else 0
                if not gone:
                    alive.append((seat, tally))
            self._seats[:] = alive
            return {name: total[name] - self._told[name] for name in COUNT_NAMES}

    def _post_counts(self, counts: dict[str, int]) -> bool:
        """Whether these counts are settled, one way or the other."""
        signed = sign_report(str(self._key), self._reporter, self._sequence, counts)
        body = {"reporter": self._reporter, "sequence": self._sequence, **counts, "signature": signed}
        try:
            status, answer = _post_report(str(self._url), body)
            if status == 200:
                self._left = answer["environment_steps_left"]
                self.spent = self._left is not None and self._left <= 0
                return True
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return False
        if status in (429, 500, 502, 503):
            self._slowly = min(self._slowly * 2, 64.0)
            return False
        if status != 409:  # which means that an answer was lost, and these are counted already
            self._sequence -= 1
            if not self._warned:
                _log.warning("The grading service refuses reports of rollouts: %s", answer.get("detail"))
            self._warned = True
        return True


def _post_report(url: str, body: Mapping[str, object]) -> tuple[int, dict[str, Any]]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=ANSWER_SECONDS)
    try:
        path = where.path.rstrip("/") + "/rollouts"
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, dict(json.loads(response.read(1 << 16)))
    finally:
        connection.close()


ROLLOUT_REPORTER = RolloutReporter(os.environ.get("GRADING_SERVER_URL"), os.environ.get("ROLLOUT_KEY"))
"""This process's."""
os.register_at_fork(after_in_child=ROLLOUT_REPORTER.reset_after_fork)


def count_steps(world: World) -> World:
    """The same world, with every step in it counted: for programs that play by themselves."""
    return replace(world, environment=lambda: ROLLOUT_REPORTER.open_slot(world))
