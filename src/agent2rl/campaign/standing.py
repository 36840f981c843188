"""Where each experiment of a campaign stands, by what lies in the runs directory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent2rl.campaign.claims import Claim, Claims
from agent2rl.campaign.experiments import Experiment
from agent2rl.campaign.past import Glance, Past, State, state_of
from agent2rl.core.records import Ending

FREE: frozenset[State] = frozenset({"todo", "stopped", "crashed"})
"""What `campaign run` takes up. A failed one waits for `campaign retry`."""


@dataclass(frozen=True)
class Standing:
    experiment: Experiment
    state: State
    run: Glance | None
    """The one that made the state."""
    settled: int
    """Runs of it that have ended."""
    holder: Claim | None

    @property
    def detail(self) -> str:
        """What a reader of the state wants to know further."""
        if self.state == "running":
            return f"on {self.holder.host}" if self.holder else "outside of campaigns"
        if self.run is None:
            return ""
        mark = "contaminated; " if self.run.contaminated else ""
        if self.run.ending == "completed":
            return mark.removesuffix("; ")
        ending = "" if self.run.ending in (None, "interrupted") else f"{self.run.ending}: "
        return (mark + ending + self.run.reason).removesuffix(": ")


def stand(experiments: Sequence[Experiment], past: Past, claims: Claims) -> list[Standing]:
    runs, now = past.look(), claims.clock()
    return [_one(each, runs.get(each.id, []), claims.holder(each.id, now)) for each in experiments]


def _one(experiment: Experiment, runs: list[Glance], holder: Claim | None) -> Standing:
    state = state_of(runs, holder is not None)
    fitting = [run for run in runs if run.state == state]
    run = fitting[-1] if fitting else None
    return Standing(experiment, state, run, sum(each.settled for each in runs), holder)


def free(standings: Iterable[Standing], again: bool) -> list[Standing]:
    """What is to be run: what nobody is at work on first, then what somebody is, lest he dies."""
    wanted = [one for one in standings if again or one.state in FREE or one.state == "running"]
    return sorted(wanted, key=lambda one: one.state == "running")


def failed(standings: Iterable[Standing], all_failed: bool, endings: Sequence[Ending]) -> list[Standing]:
    """What is to be run once more."""
    return [
        one
        for one in standings
        if (all_failed and one.state == "failed")
        or (one.state in ("done", "failed", "stopped") and one.run and one.run.ending in endings)
    ]
