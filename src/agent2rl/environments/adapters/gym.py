"""Expose a world as a gym: `reset` and `step` with Gymnasium's signatures, without depending on it.

    gym = Gym(open_world())
    observation, info = gym.reset(seed=0)
    observation, reward, terminated, truncated, info = gym.step("look")

Actions and observations are text. `terminated` means that the game ended, won or lost; `truncated` that its
step limit was reached. `info` has `game` (its id), `steps` and `won`. Not covered: spaces, rendering.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.adapters.episodes import GameSelector, open_world
from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER

Info = dict[str, Any]


class Gym:
    """Play one episode after another."""

    def __init__(self, world: World | None = None, seed: int | None = None) -> None:
        world = world or open_world()
        self._games = GameSelector(world)
        self._order: Iterator[Example] = self._games.iter_shuffled(seed)
        self._slot = ROLLOUT_REPORTER.open_slot(world)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, Info]:
        """Begin the game in `options={"game": id}`, else the next in random order; a seed restarts it."""
        if seed is not None:
            self._order = self._games.iter_shuffled(seed)
        _check_options(options, "game")
        game_id = (options or {}).get("game")
        step = self._slot.reset(next(self._order) if game_id is None else self._games.find_game(game_id))
        return step.observation, self._build_info(step)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        step = self._slot.step(action)
        return step.observation, step.reward, step.done and not step.cut, step.cut, self._build_info(step)

    def close(self) -> None:
        self._slot.close()

    def _build_info(self, step: EnvironmentStep) -> Info:
        slot = self._slot
        return {"game": slot.game.id if slot.game else "", "steps": slot.steps, "won": step.won}


class Gyms:
    """Play many episodes at once. Every argument and result is a list with one entry per episode.

    When an episode ends, the next begins within the same step (Gymnasium's SAME_STEP): reward, terminated and
    truncated belong to the episode that ended, and the observation is the first of the next one. Its info
    has the new `game`, and `final_obs` and `final_info` of the episode that ended. Infos are a list of
    dictionaries, one per episode.
    """

    def __init__(self, count: int, world: World | None = None, seed: int | None = None) -> None:
        if count < 1:
            raise UserError(f"Invalid number of gyms: {count}.", "Use 1 or more.")
        world = world or open_world()
        self._gyms = [Gym(world, _derive_seed(seed, number)) for number in range(count)]

    def __len__(self) -> int:
        return len(self._gyms)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[str], list[Info]]:
        """Begin a game in every gym, each with its own order. `options={"games": ids}` names one per gym."""
        _check_options(options, "games")
        games = (options or {}).get("games") or [None] * len(self)
        first = [
            gym.reset(seed=_derive_seed(seed, number), options={"game": game})
            for number, (gym, game) in enumerate(zip(self._gyms, self._check_length(games), strict=True))
        ]
        return [observation for observation, _ in first], [info for _, info in first]

    def step(
        self, actions: Sequence[str]
    ) -> tuple[list[str], list[float], list[bool], list[bool], list[Info]]:
        results = [
            _step_and_reset(gym, action)
            for gym, action in zip(self._gyms, self._check_length(actions), strict=True)
        ]
        observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
        return list(observations), list(rewards), list(terminated), list(truncated), list(infos)

    def close(self) -> None:
        for gym in self._gyms:
            gym.close()

    def _check_length(self, values: Sequence[Any]) -> Sequence[Any]:
        if len(values) != len(self):
            raise UserError(f"Expected {len(self)} values, one per gym, got {len(values)}.")
        return values


def _step_and_reset(gym: Gym, action: str) -> tuple[str, float, bool, bool, Info]:
    observation, reward, terminated, truncated, info = gym.step(action)
    if terminated or truncated:
        final = {"final_obs": observation, "final_info": info}
        observation, info = gym.reset()
        info |= final
    return observation, reward, terminated, truncated, info


def _derive_seed(seed: int | None, number: int) -> int | None:
    """Derive a separate seed for each gym."""
    # Far apart, so that the gyms of neighbouring seeds do not play the same order of games.
    return None if seed is None else seed * 1_000_003 + number


def _check_options(options: Mapping[str, Any] | None, name: str) -> None:
    unknown = sorted(set(options or {}) - {name})
    if unknown:
        raise UserError(f"There is no option {unknown[0]!r}.", f"The only option is {name!r}.")
