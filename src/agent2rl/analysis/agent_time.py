"""The agent's time: seconds since its start in which a harness was at work. Dead time is no part of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from agent2rl.core.events import TimelineEvent
from agent2rl.core.records import LedgerEntry


@dataclass(frozen=True)
class AgentTime:
    starts: tuple[tuple[float, float], ...]
    """When the agent was started, and what it had used of its time by then: once, and each time that the run
    was resumed."""

    @classmethod
    def from_record(cls, record: Iterable[TimelineEvent] | Iterable[LedgerEntry]) -> Self:
        """From the timeline, or from the ledger."""
        found = []
        for each in record:
            used = each.data.get("used_seconds", 0.0)
            if each.kind == "started" and isinstance(used, int | float):
                found.append((each.time, float(used)))
        return cls(tuple(found))

    def seconds_at(self, time: float) -> float:
        """What was used at a time; negative before the first start. What happened while nobody was alive, or
        before the agent was started again, is where it was started again."""
        place = sum(began <= time for began, _ in self.starts)
        began, used = self.starts[max(0, place - 1)]
        end = self.starts[place][1] if 0 < place < len(self.starts) else float("inf")
        return min(used + (time - began), end)

    def find_life_end(self, time: float) -> float | None:
        """Where the life ended in which something was seen; None in the last one."""
        place = sum(began <= time for began, _ in self.starts)
        return self.starts[place][1] if 0 < place < len(self.starts) else None
