"""The executors by name. Ray and submitit are loaded where they are asked for."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from agent2rl.campaign import local_executor, ray_executor, resource_leases, slurm_executor
from agent2rl.campaign.campaign_file import RunResources
from agent2rl.campaign.campaign_sessions import CampaignSession
from agent2rl.campaign.executor import JobExecutor
from agent2rl.core.errors import UserError

Name = Literal["local", "ray", "slurm"]


@dataclass(frozen=True)
class ExecutorOptions:
    """Where a campaign is to be run."""

    executor: Name = "local"
    parallel: int | None = None
    """Runs at once. None: as many as fit on this machine, or as the cluster lets."""
    address: str | None = None
    """Of a Ray cluster; None: what Ray finds, else one on this machine."""
    fetch: bool = False
    """Whether Ray's workers have no part in the runs directory."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Further parameters of sbatch."""

    def __post_init__(self) -> None:
        given = (
            ("address", self.address, "ray"),
            ("fetch", self.fetch, "ray"),
            ("slurm", self.slurm, "slurm"),
        )
        for name, value, owner in given:
            if value and self.executor != owner:
                raise UserError(
                    f"--{name} means nothing to --executor {self.executor}.", f"It is for {owner}."
                )

    def count_slots(self, resources: RunResources, gpus: Sequence[str]) -> int | None:
        """Runs at once; None where only the cluster knows."""
        if self.executor != "local":
            return self.parallel
        fits = resource_leases.count_parallel_runs(resources, gpus)
        return self.parallel or fits


def open_executor(
    wanted: ExecutorOptions,
    resources: RunResources,
    gpus: Sequence[str],
    by_bus: bool,
    session: CampaignSession,
) -> AbstractContextManager[JobExecutor]:
    if wanted.executor == "ray":
        return ray_executor.open_ray_executor(resources, wanted.parallel, wanted.address, wanted.fetch)
    if wanted.executor == "slurm":
        return slurm_executor.open_slurm_executor(
            resources, wanted.parallel, session.paths.jobs, wanted.slurm
        )
    return local_executor.open_local_executor(
        resources, wanted.count_slots(resources, gpus) or 1, gpus, by_bus
    )
