"""A small world for tests: stairs to climb, and somebody who can."""

from dataclasses import dataclass, field

from agent2rl.core.environment import EnvironmentStep
from agent2rl.core.task import Example
from agent2rl.evaluators.episode_prompts import EpisodePrompt

MAX_STEPS = 6


@dataclass
class StairsEnvironment:
    """`up` climbs; whoever stands on the example's step has won, whoever says `jump` has lost."""

    closed: list["StairsEnvironment"] = field(default_factory=list)
    height: int = 0
    steps: int = 0
    goal: int = 0

    def reset(self, example: Example) -> EnvironmentStep:
        self.height, self.steps, self.goal = 0, 0, int(example.target)
        return EnvironmentStep(f"You stand on step 0. Climb to step {self.goal}.")

    def step(self, action: str) -> EnvironmentStep:
        if action == "trip":
            raise ValueError("stairs are dangerous")
        self.steps += 1
        self.height += action == "up"
        won = self.height == self.goal
        lost = action == "jump"
        cut = not won and not lost and self.steps == MAX_STEPS
        return EnvironmentStep(f"You stand on step {self.height}.", float(won), won or lost or cut, won, cut)

    def close(self) -> None:
        self.closed.append(self)


class StairsExpert:
    """An expert."""

    def act(self, observation: str) -> str:
        return "up" if observation else "wait"


STAIRS_EXAMPLES = [
    Example(f"stairs-{n}", "", str(n), {"kind": "low" if n < 4 else "high"}) for n in range(1, 9)
]
STAIRS_PROMPT = EpisodePrompt(
    chat="Say up or wait.", plain={"": "You stand on step 3.\n> up\nYou stand on step 4."}, name="stairs"
)
