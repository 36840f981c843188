"""Trains without any LLM: SFT, then GRPO from the best so far; `recipe:sft` and `recipe:grpo` do one.

It follows the run's mode: `rl-only` has no SFT, `sft-only` no GRPO, and in `rl-oriented` SFT is a warm-up
that is not submitted.
"""

from dataclasses import dataclass

from agent2rl.core.agent import Agent, Brief
from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import Command

STAGES = ("sft", "grpo")
ALLOWED = {"sft-only": ("sft",), "rl-only": ("grpo",)}
"""Stages that a mode permits, if not all."""


@dataclass(frozen=True)
class Recipe:
    stages: tuple[str, ...] = STAGES
    secrets: tuple[str, ...] = ()

    def require_model(self, model: str, engine: str) -> None:
        """Refuse what is a Python function and no language model."""
        if engine.partition(":")[0] == "scripted":
            raise UserError(
                f"The agent 'recipe' trains language models, and {model} is not one.",
                "For example --model seedling, or another: agent2rl list models.",
            )

    def command(self, brief: Brief) -> Command:
        """Run the training program with a Python that has this package."""
        stages = [stage for stage in self.stages if stage in ALLOWED.get(brief.mode, STAGES)]
        if not stages or (brief.mode == "rl-oriented" and stages[-1] != "grpo"):
            raise UserError(
                f"The mode {brief.mode!r} does not allow recipe:{self.stages[0]}.", "Choose another mode."
            )
        program = (brief.agent2rl_python, "-m", "agent2rl.agents.recipe.train", *stages)
        return Command(program, brief.environment)


def parse(argument: str) -> Recipe:
    if argument not in STAGES:
        raise UserError(f"There is no recipe {argument!r}.", "Known: recipe, recipe:sft, recipe:grpo.")
    return Recipe((argument,))


AGENT: Agent = Recipe()
