"""Does nothing and exits: the baseline of a run without an agent."""

from dataclasses import dataclass

from agent2rl.core.agent import Agent, Brief
from agent2rl.core.sandbox import Command


@dataclass(frozen=True)
class Nop:
    secrets: tuple[str, ...] = ()

    def command(self, brief: Brief) -> Command:
        return Command(("true",), brief.environment)


AGENT: Agent = Nop()
