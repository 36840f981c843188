"""Sees a campaign through: gives its jobs to an executor, and again what another claimed and did not do."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent2rl.campaign.campaign_file import RunResources
from agent2rl.campaign.campaign_sessions import CampaignSession
from agent2rl.campaign.executor import EndedJob, JobExecutor
from agent2rl.campaign.experiment_claims import ExperimentClaims
from agent2rl.campaign.experiment_status import ExperimentStatus
from agent2rl.campaign.experiments import format_cell
from agent2rl.campaign.job_worker import CampaignJob
from agent2rl.campaign.plan import CostEstimator

LOOP_SECONDS = 1.0
PATIENCE_SECONDS = 3.0
"""Between two looks at what another has claimed."""


def make_jobs(
    chosen: Sequence[ExperimentStatus],
    session: CampaignSession,
    runs: str,
    resources: RunResources,
    experience: CostEstimator,
    resume: bool,
) -> list[CampaignJob]:
    return [
        CampaignJob(
            experiment=one.experiment.id,
            label=format_cell(one.experiment.cell),
            arguments=one.experiment.arguments,
            runs=runs,
            session=str(session.paths.root),
            settled=one.settled,
            directory=str(Path.cwd()),
            resume=resume,
            resources=resources,
            wall_seconds=experience.estimate_limit_seconds(one.experiment.spec),
        )
        for one in chosen
    ]


def run_jobs(
    wanted: Sequence[CampaignJob],
    executor: JobExecutor,
    session: CampaignSession,
    claims: ExperimentClaims,
    tell: Callable[[list[EndedJob]], None],
) -> list[EndedJob]:
    """Until every job has ended, here or elsewhere. `tell` is called about once a second."""
    executor.submit(wanted)
    under_way, waiting, ended = len(wanted), list[CampaignJob](), list[EndedJob]()
    looked, stopping = time.monotonic(), False
    while under_way or waiting:
        found = executor.ended(LOOP_SECONDS)
        under_way -= len(found)
        waiting += [one.job for one in found if one.outcome.kind == "busy"]
        news = [one for one in found if one.outcome.kind != "busy"]
        ended += news
        tell(news)
        if session.read_stop_request():
            if not stopping:
                executor.stop()
            stopping, waiting = True, []
        if waiting and time.monotonic() - looked >= PATIENCE_SECONDS:
            looked = time.monotonic()
            free = [job for job in waiting if claims.find_holder(job.experiment) is None]
            waiting = [job for job in waiting if job not in free]
            executor.submit(free)
            under_way += len(free)
    return ended
