"""Trains without any LLM: SFT, then GRPO from the best so far; `recipe:sft` and `recipe:grpo` do one."""

from dataclasses import dataclass

from agent2rl.core.agent import Agent, Brief
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command

STAGES = ("sft", "grpo")
ALLOWED = {"sft-only": ("sft",), "rl-only": ("grpo",)}
"""What a mode permits, where that is not everything."""


@dataclass(frozen=True)
class Recipe:
    stages: tuple[str, ...] = STAGES
    secrets: tuple[str, ...] = ()

    def command(self, brief: Brief) -> Command:
        """The program is part of the package, which every agent's Python has."""
        stages = [stage for stage in self.stages if stage in ALLOWED.get(brief.mode, STAGES)]
        if not stages:
            raise UserError(f"recipe:{self.stages[0]} has nothing to do in the mode {brief.mode!r}.")
        return Command(("python", "-m", "agent2rl.agents.recipe.train", *stages), brief.environment)


def parse(argument: str) -> Recipe:
    if argument not in STAGES:
        raise UserError(f"There is no recipe {argument!r}.", "Known: recipe, recipe:sft, recipe:grpo.")
    return Recipe((argument,))


AGENT: Agent = Recipe()
