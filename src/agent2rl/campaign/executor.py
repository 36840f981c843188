"""What a campaign asks of whatever runs its jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent2rl.campaign.work import Job, Outcome


@dataclass(frozen=True)
class Ended:
    job: Job
    outcome: Outcome


class Executor(Protocol):
    """Where and when a job is done is the executor's to know. It may be given further jobs at any time."""

    def submit(self, jobs: Sequence[Job]) -> None: ...

    def ended(self, seconds: float) -> list[Ended]:
        """Jobs that have ended since the last call; waits so long for one at most."""

    def stop(self) -> None:
        """Jobs that have not begun end as stopped. Those that have begun see their session's stop file."""
