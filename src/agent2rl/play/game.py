"""A game that a person plays in an environment, with the texts, actions and rewards of a model."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

from agent2rl.core.environment import CommandLister, EnvironmentStep, RedirectableExpert, World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example

NAME_CHARACTERS = 80
"""Length of a name in an error message."""


@dataclass(frozen=True, slots=True)
class GameTurn:
    action: str
    """Empty for the first turn, which is the reset."""
    step: EnvironmentStep


class HumanGame:
    """Plays training games one after another. They are numbered from 1; after the last comes the first."""

    def __init__(self, world: World, number: int = 1) -> None:
        self.world = world
        self.environment = world.environment()
        self.closed = False
        self.begin_game(number)

    def begin_game(self, number: int) -> None:
        self.number = (number - 1) % len(self.world.games) + 1
        self.turns = [GameTurn("", self.environment.reset(self.example))]

    def take_action(self, action: str) -> EnvironmentStep:
        if self.over:
            raise UserError("The game is over.", "Play it again, or the next one.")
        step = self.environment.step(action)
        self.turns.append(GameTurn(action, step))
        return step

    def close(self) -> None:
        self.closed = True
        self.environment.close()

    @property
    def example(self) -> Example:
        return self.world.games[self.number - 1]

    @property
    def now(self) -> EnvironmentStep:
        return self.turns[-1].step

    @property
    def over(self) -> bool:
        return self.now.done

    @property
    def steps(self) -> int:
        return len(self.turns) - 1

    @property
    def allowed(self) -> int | None:
        """The step limit, if the game has one."""
        steps = self.example.meta.get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def reward(self) -> float:
        """The best reward of any step, as in grading."""
        return max(turn.step.reward for turn in self.turns)

    def list_commands(self) -> tuple[str, ...]:
        """Return the possible actions, if the environment can list them."""
        world = self.environment
        return world.commands() if isinstance(world, CommandLister) and not self.over else ()

    def ask_expert(self) -> str:
        """Return what the expert would do now."""
        if self.world.expert is None:
            raise UserError("This world has no expert.", "The training data may have an answer.")
        if self.over:
            raise UserError("The game is over.", "Play it again, or the next one.")
        expert, advice = self.world.expert(), ""
        for turn in self.turns:
            if turn.action != advice:
                if not isinstance(expert, RedirectableExpert):
                    raise UserError(
                        "This expert cannot continue after another player's actions.",
                        f"You said {turn.action!r}, it would have said {advice!r}. Play again to follow it.",
                    )
                expert.replace_action(turn.action)
            advice = expert.act(turn.step.observation)
        return advice

    def outcome(self) -> str:
        """Describe how the game ended."""
        how = "Won" if self.now.won else "Out of steps, not won" if self.now.cut else "Over, not won"
        return f"{how}. Reward {self.reward:.3g} after {self.steps} {'step' if self.steps == 1 else 'steps'}."


def find_game_number(world: World, name: str | None) -> int:
    """Return the number of a game given by number or id; 1 if no name is given."""
    if not world.games:
        raise UserError("This world has no training games.")
    if name is None:
        return 1
    for number, game in enumerate(world.games, start=1):
        if name in (str(number), game.id):
            return number
    raise UserError(
        f"There is no training game {name[:NAME_CHARACTERS]!r}.",
        f"Games are numbered from 1 to {len(world.games)}; the first is {world.games[0].id!r}. "
        "Feedback and held-out games cannot be played.",
    )


def list_actions(world: World) -> list[tuple[str, str]]:
    """Return each action as it is written, with what it does; empty if any text is an action."""
    return [_describe_action(tool) for tool in world.tools]


def _describe_action(tool: Callable[..., str]) -> tuple[str, str]:
    about = (tool.__doc__ or "").strip().partition("\n")[0]
    parameters = signature(tool).parameters
    if all(parameter.annotation is str for parameter in parameters.values()):
        return tool(*(f"<{name}>" for name in parameters)), about
    name = getattr(tool, "__name__", "action")
    return f"{name}({', '.join(parameters)})", about
