"""The executors by name. Ray and submitit are loaded where they are asked for."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from agent2rl.campaign import leases, local, ray, slurm
from agent2rl.campaign.executor import Executor
from agent2rl.campaign.record import Resources
from agent2rl.campaign.sessions import Session
from agent2rl.core.errors import UserError

Name = Literal["local", "ray", "slurm"]


@dataclass(frozen=True)
class Wanted:
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

    def slots(self, resources: Resources, gpus: Sequence[str]) -> int | None:
        """Runs at once; None where only the cluster knows."""
        if self.executor != "local":
            return self.parallel
        fits = leases.capacity(resources, gpus)
        return self.parallel or fits


def opened(
    wanted: Wanted, resources: Resources, gpus: Sequence[str], by_bus: bool, session: Session
) -> AbstractContextManager[Executor]:
    if wanted.executor == "ray":
        return ray.opened(resources, wanted.parallel, wanted.address, wanted.fetch)
    if wanted.executor == "slurm":
        return slurm.opened(resources, wanted.parallel, session.paths.jobs, wanted.slurm)
    return local.opened(resources, wanted.slots(resources, gpus) or 1, gpus, by_bus)
