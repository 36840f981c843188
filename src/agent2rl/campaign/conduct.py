"""Sees a campaign through: gives its jobs to an executor, and again what another claimed and did not do."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent2rl.campaign.claims import Claims
from agent2rl.campaign.executor import Ended, Executor
from agent2rl.campaign.experiments import told
from agent2rl.campaign.plan import Experience
from agent2rl.campaign.record import Resources
from agent2rl.campaign.sessions import Session
from agent2rl.campaign.standing import Standing
from agent2rl.campaign.work import Job

TICK_SECONDS = 1.0
PATIENCE_SECONDS = 3.0
"""Between two looks at what another has claimed."""


def jobs(
    chosen: Sequence[Standing],
    session: Session,
    runs: str,
    resources: Resources,
    experience: Experience,
    resume: bool,
) -> list[Job]:
    return [
        Job(
            experiment=one.experiment.id,
            label=told(one.experiment.cell),
            arguments=one.experiment.arguments,
            runs=runs,
            session=str(session.paths.root),
            settled=one.settled,
            directory=str(Path.cwd()),
            resume=resume,
            resources=resources,
            wall_seconds=experience.limit_seconds(one.experiment.spec),
        )
        for one in chosen
    ]


def conduct(
    wanted: Sequence[Job],
    executor: Executor,
    session: Session,
    claims: Claims,
    tell: Callable[[list[Ended]], None],
) -> list[Ended]:
    """Until every job has ended, here or elsewhere. `tell` is called about once a second."""
    executor.submit(wanted)
    under_way, waiting, ended = len(wanted), list[Job](), list[Ended]()
    looked, stopping = time.monotonic(), False
    while under_way or waiting:
        found = executor.ended(TICK_SECONDS)
        under_way -= len(found)
        waiting += [one.job for one in found if one.outcome.kind == "busy"]
        news = [one for one in found if one.outcome.kind != "busy"]
        ended += news
        tell(news)
        if session.asked():
            if not stopping:
                executor.stop()
            stopping, waiting = True, []
        if waiting and time.monotonic() - looked >= PATIENCE_SECONDS:
            looked = time.monotonic()
            free = [job for job in waiting if claims.holder(job.experiment) is None]
            waiting = [job for job in waiting if job not in free]
            executor.submit(free)
            under_way += len(free)
    return ended
