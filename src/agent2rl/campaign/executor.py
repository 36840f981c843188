"""What a campaign asks of whatever runs its jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent2rl.campaign.job_worker import CampaignJob, JobOutcome


@dataclass(frozen=True)
class EndedJob:
    job: CampaignJob
    outcome: JobOutcome


class JobExecutor(Protocol):
    """Where and when a job is done is the executor's to know. It may be given further jobs at any time."""

    def submit(self, jobs: Sequence[CampaignJob]) -> None: ...

    def ended(self, seconds: float) -> list[EndedJob]:
        """Jobs that have ended since the last call; waits so long for one at most."""

    def stop(self) -> None:
        """Jobs that have not begun end as stopped. Those that have begun see their session's stop file."""
